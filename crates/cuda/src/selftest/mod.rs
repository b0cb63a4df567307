//! Self-test
