use super::*;
use proptest::prelude::*;

struct Files(tempfile::TempDir);

impl Files {
    fn new(files: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        for (name, content) in files {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        Self(folder)
    }

    fn open(&self, documents: Documents) -> Result<Corpus, DataError> {
        Corpus::open(&[self.0.path().to_owned()], documents)
    }

    fn read(&self, documents: Documents, parts: usize) -> Result<Vec<Vec<String>>, DataError> {
        let corpus = self.open(documents)?;
        let mut found = Vec::new();
        for index in 0..parts {
            let mut each = |document: &[String]| {
                found.push(document.to_vec());
                Ok(())
            };
            corpus.each_document(index, parts, &mut each)?;
        }
        Ok(found)
    }

    #[track_caller]
    fn fails(&self, expected: &str) {
        let text = self.read(Documents::BlankLines, 1).unwrap_err().to_string();
        assert!(text.contains(expected), "{text}");
    }
}

const PLAIN: &str = "\u{feff}One.\nTwo.\r\n \t\n\n\nThree.\n\nFour.";
const WIKI: &str = "\
<doc id=\"1\" title=\"A\">\nA\n\nOne.\n\nTwo.\n</doc>\n
<doc id=\"2\">\nB\n</doc>
<doc id=\"3\">\nC\n\nThree.\n</doc>\n";

#[test]
fn blank_lines_separate_documents() {
    let files = Files::new(&[("b.txt", PLAIN), ("a/x.md", "Zero.\n"), (".hidden", "no")]);
    let expected = vec![vec!["Zero."], vec!["One.", "Two."], vec!["Three."], vec!["Four."]];
    assert_eq!(files.read(Documents::BlankLines, 1).unwrap(), expected);
    let whole = vec![vec!["Zero."], vec!["One.", "Two.", "Three.", "Four."]];
    assert_eq!(files.read(Documents::Files, 3).unwrap(), whole);
}

#[test]
fn articles_lose_their_titles() {
    for name in ["wiki_00", "other.txt"] {
        let files = Files::new(&[(name, WIKI)]);
        for documents in [Documents::BlankLines, Documents::Files] {
            assert_eq!(files.read(documents, 1).unwrap(), [vec!["One.", "Two."], vec!["Three."]]);
        }
    }
}

#[test]
fn the_hash_follows_content_and_cut() {
    let hash = |text: &str, documents| Files::new(&[("a", text)]).open(documents).unwrap().hash().unwrap();
    assert_eq!(hash("a\n", Documents::Files), hash("a\n", Documents::Files));
    assert_ne!(hash("a\n", Documents::Files), hash("b\n", Documents::Files));
    assert_ne!(hash("a\n", Documents::Files), hash("a\n", Documents::BlankLines));
}

#[test]
fn what_is_no_text_is_an_error() {
    Files::new(&[]).fails("no file in it; expected text files");
    Files::new(&[("a", "")]).fails("only empty files");
    let missing = Corpus::open(&["nowhere".into()], Documents::Files).unwrap_err().to_string();
    assert!(missing.starts_with("nowhere: no such file or folder"), "{missing}");
    let garbled = Files::new(&[("a", "good\n")]);
    fs::write(garbled.0.path().join("a"), b"good\nba\xffd\n").unwrap();
    garbled.fails("a: byte 7: not UTF-8");
}

#[test]
fn broken_articles_are_errors() {
    Files::new(&[("wiki_00", "Hello.\n")]).fails("wiki_00: byte 0: text outside of a document");
    Files::new(&[("wiki_00", "<doc >\nA\nB\n<doc >\n")]).fails("byte 11: <doc ...> within a document");
    Files::new(&[("wiki_00", "<doc >\nA\nB\n")]).fails("byte 11: the file ends within a document");
}

proptest! {
    /// However a corpus is cut into parts, each document is read once and whole.
    #[test]
    fn parts_make_the_whole(parts in 1usize..40, lines in prop::collection::vec("(\n|a|bc\n|\r\n|d \n){0,12}", 1..4)) {
        let wiki = format!("{WIKI}{WIKI}");
        let named = lines.iter().enumerate().map(|(number, text)| (format!("f{number}"), text.as_str()));
        let mut files: Vec<(String, &str)> = named.collect();
        files.push(("wiki_00".to_owned(), &wiki));
        let files: Vec<(&str, &str)> = files.iter().map(|(name, text)| (name.as_str(), *text)).collect();
        let files = Files::new(&files);
        for documents in [Documents::BlankLines, Documents::Files] {
            prop_assert_eq!(files.read(documents, parts).unwrap(), files.read(documents, 1).unwrap());
        }
    }
}
