//! The reference kernels against other implementations.

use bessemer_testkit::peer_cases;

#[test]
fn the_reference_computes_what_others_compute() {
    let cases = peer_cases();
    assert_eq!(cases.len(), 26);
    let problems: Vec<String> = cases.iter().filter_map(|case| case.check_reference(1e-10).err()).collect();
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}
