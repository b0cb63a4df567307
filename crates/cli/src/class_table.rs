//! Scores of classes of objects, as text.

use crate::output::Table;
use bessemer_train::tasks::class_scores::ClassScores;

/// A row for each class.
pub(crate) fn class_table(classes: &[ClassScores]) -> Table {
    let mut table = Table::new(1, &ClassScores::columns());
    classes.iter().for_each(|class| table.row(class.cells()));
    table
}
