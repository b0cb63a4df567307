//! Results, on standard output and in files.

use std::fs::{self, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Prints a text as it is. A reader who has gone (`| head`) ends the program in silence.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => std::process::exit(0),
        result => Ok(result?),
    }
}

/// Prints a value as JSON over several lines.
pub(crate) fn print_json(value: &impl serde::Serialize) -> anyhow::Result<()> {
    print(&(serde_json::to_string_pretty(value)? + "\n"))
}

/// Lines of a table as RFC 4180 has them: cells with commas, quotes or line breaks are quoted, and lines end in CR LF.
#[derive(Default)]
pub(crate) struct Csv {
    has_header: bool,
}

impl Csv {
    /// Rows, before the first ones the names of their columns.
    pub(crate) fn lines(
        &mut self,
        columns: &[&str],
        rows: impl IntoIterator<Item = Vec<String>>,
    ) -> anyhow::Result<String> {
        let mut writer = csv::WriterBuilder::new().terminator(csv::Terminator::CRLF).from_writer(Vec::new());
        if !self.has_header {
            writer.write_record(columns)?;
            self.has_header = true;
        }
        rows.into_iter().try_for_each(|row| writer.write_record(row))?;
        Ok(String::from_utf8(writer.into_inner()?)?)
    }
}

/// Rows of text in columns, the first `left` of them flush left, the others flush right.
pub(crate) struct Table {
    left: usize,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(left: usize, header: &[&str]) -> Self {
        let mut table = Self { left, rows: Vec::new() };
        if !header.is_empty() {
            table.rows.push(header.iter().map(|cell| (*cell).to_owned()).collect());
        }
        table
    }

    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }
}

impl std::fmt::Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            self.rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for row in &self.rows {
            let mut line = String::new();
            for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
                let gap = if column > 0 { "  " } else { "" };
                line +=
                    &if column < self.left { format!("{gap}{cell:<width$}") } else { format!("{gap}{cell:>width$}") };
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// Writes a file beside the one that is there, which is replaced when all of it is written.
pub(crate) fn replace(path: &Path, text: &str) -> io::Result<()> {
    // A pipe or a terminal is written to as it is.
    if fs::metadata(path).is_ok_and(|known| !known.is_file()) {
        return fs::write(path, text);
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut file = tempfile::Builder::new().permissions(Permissions::from_mode(0o666)).tempfile_in(folder)?;
    file.write_all(text.as_bytes())?;
    file.persist(path)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_cannot_be_written_stays_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("report.html");
        for text in ["first", "second"] {
            replace(&path, text).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
        assert!(replace(&folder.path().join("none/report.html"), "").is_err());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left beside it");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o400, 0o400);
    }

    #[test]
    fn cells_of_csv_are_quoted_where_they_must_be() {
        let mut csv = Csv::default();
        let row = |cells: [&str; 2]| cells.map(str::to_owned).to_vec();
        let first = csv.lines(&["picture", "name"], [row(["a, \"b\".jpg", "tench"]), row(["c.jpg", "two\nlines"])]);
        assert_eq!(first.unwrap(), "picture,name\r\n\"a, \"\"b\"\".jpg\",tench\r\nc.jpg,\"two\nlines\"\r\n");
        assert_eq!(csv.lines(&["picture", "name"], [row(["", "é"])]).unwrap(), ",é\r\n", "the header comes once");
        assert_eq!(Csv::default().lines(&["picture", "name"], []).unwrap(), "picture,name\r\n");
    }

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(1, &["name", "n"]);
        table.row(["a".to_owned(), "100".to_owned()]);
        assert_eq!(table.to_string(), "name    n\na     100\n");
    }
}
