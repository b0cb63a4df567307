//! Documents of text files: plain text, or what WikiExtractor writes.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::{DataError, FilePosition};

const LAYOUT: &str = "text files: plain, with blank lines between documents, or written by WikiExtractor";
const WIKI_LAYOUT: &str = "documents between lines <doc ...> and </doc>";

/// What separates the documents of plain text.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Documents {
    /// A blank line.
    #[default]
    BlankLines,
    /// Nothing: each file is one document, as a book is.
    Files,
}

/// Text files in their order.
#[derive(Debug)]
pub(super) struct Corpus {
    files: Vec<TextFile>,
    documents: Documents,
}

#[derive(Debug)]
struct TextFile {
    path: PathBuf,
    bytes: u64,
    is_wiki: bool,
}

impl Corpus {
    /// Lists the files of `inputs`: files as they are, folders with all they hold, by path; hidden files are passed
    /// over.
    ///
    /// A file is taken for WikiExtractor's if it is named `wiki_...` or begins with `<doc `.
    ///
    /// Errors: an input that does not exist or cannot be read; no file, or none that is not empty.
    pub(super) fn open(inputs: &[PathBuf], documents: Documents) -> Result<Self, DataError> {
        let mut files = Vec::new();
        for input in inputs {
            files_of(input, LAYOUT, &mut |path, bytes| {
                files.push(TextFile { path: path.to_owned(), bytes, is_wiki: is_wiki(path)? });
                Ok(())
            })?;
        }
        let corpus = Self { files, documents };
        let first = inputs.first().map_or(Path::new("."), PathBuf::as_path);
        if corpus.bytes() == 0 {
            let found = if corpus.files.is_empty() { "no file in it" } else { "only empty files" };
            return Err(DataError::layout(first, found, LAYOUT));
        }
        Ok(corpus)
    }

    /// Bytes of all files.
    pub(super) fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }

    /// Number of files.
    pub(super) fn files(&self) -> usize {
        self.files.len()
    }

    /// SHA-256 of what the files hold and of how it is cut into documents.
    pub(super) fn hash(&self) -> Result<[u8; 32], DataError> {
        let mut hasher = Sha256::new();
        hasher.update([self.documents as u8]);
        for file in &self.files {
            hasher.update(file.bytes.to_le_bytes());
            hasher.update([file.is_wiki.into()]);
            hash_file(&file.path, &mut hasher)?;
        }
        Ok(hasher.finalize().into())
    }

    /// Hands the documents of part `index` of `parts` to `each`, in order. A document is its lines, without blank ones.
    ///
    /// Parts are runs of bytes of about one size. A document belongs to the part in which its separator begins: the
    /// blank line before it, its `<doc ...>` line, or the start of its file.
    ///
    /// Errors: those of `each`; a file that cannot be read or is not UTF-8; text outside of `<doc ...>` and `</doc>`.
    pub(super) fn each_document(
        &self,
        index: usize,
        parts: usize,
        each: &mut dyn FnMut(&[String]) -> Result<(), DataError>,
    ) -> Result<(), DataError> {
        let bound = |index: usize| (u128::from(self.bytes()) * index as u128 / parts as u128) as u64;
        let part = bound(index)..bound(index + 1);
        let mut start = 0;
        for file in &self.files {
            let end = start + file.bytes;
            let within = part.start.max(start)..part.end.min(end);
            if within.start < within.end {
                file.each_document(within.start - start..within.end - start, self.documents, each)?;
            }
            start = end;
        }
        Ok(())
    }
}

/// Hands a file, or those of a folder and its folders by path, with their sizes to `each`; hidden ones are passed over.
///
/// Errors: those of `each`; a path that does not exist, where `expected` should be, or cannot be read.
pub(super) fn files_of(
    path: &Path,
    expected: &str,
    each: &mut dyn FnMut(&Path, u64) -> Result<(), DataError>,
) -> Result<(), DataError> {
    let metadata = match fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(DataError::layout(path, "no such file or folder", expected));
        }
        Err(error) => return Err(DataError::io(path, "look at the file")(error)),
    };
    if metadata.is_file() {
        return each(path, metadata.len());
    }
    let entries = fs::read_dir(path).map_err(DataError::io(path, "list the folder"))?;
    let names: Result<Vec<_>, _> = entries.map(|entry| entry.map(|entry| entry.file_name())).collect();
    let mut names = names.map_err(DataError::io(path, "list the folder"))?;
    names.retain(|name| !name.as_encoded_bytes().starts_with(b"."));
    names.sort_unstable();
    names.iter().try_for_each(|name| files_of(&path.join(name), expected, each))
}

fn is_wiki(path: &Path) -> Result<bool, DataError> {
    if path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"wiki_")) {
        return Ok(true);
    }
    let mut lines = Lines::open(path, 0)?;
    let mut start = [0; 16];
    let read = std::io::Read::read(&mut lines.reader, &mut start).map_err(DataError::io(path, "read the file"))?;
    let start = start[..read].strip_prefix("\u{feff}".as_bytes()).unwrap_or(&start[..read]);
    Ok(start.starts_with(b"<doc "))
}

pub(super) fn hash_file(path: &Path, hasher: &mut Sha256) -> Result<(), DataError> {
    let mut lines = Lines::open(path, 0)?;
    loop {
        let bytes = lines.reader.fill_buf().map_err(DataError::io(path, "read the file"))?;
        if bytes.is_empty() {
            return Ok(());
        }
        hasher.update(bytes);
        let read = bytes.len();
        lines.reader.consume(read);
    }
}

impl TextFile {
    fn each_document(
        &self,
        part: Range<u64>,
        documents: Documents,
        each: &mut dyn FnMut(&[String]) -> Result<(), DataError>,
    ) -> Result<(), DataError> {
        match (self.is_wiki, documents) {
            (true, _) => self.each_article(part, each),
            (false, Documents::BlankLines) => self.each_block(part, each),
            (false, Documents::Files) if part.start == 0 => self.whole(each),
            (false, Documents::Files) => Ok(()),
        }
    }

    fn whole(&self, each: &mut dyn FnMut(&[String]) -> Result<(), DataError>) -> Result<(), DataError> {
        let mut lines = Lines::open(&self.path, 0)?;
        let mut document = Vec::new();
        while let Some((_, line)) = lines.next()? {
            if !line.is_empty() {
                document.push(line.to_owned());
            }
        }
        hand_over(&mut document, each)
    }

    fn each_block(
        &self,
        part: Range<u64>,
        each: &mut dyn FnMut(&[String]) -> Result<(), DataError>,
    ) -> Result<(), DataError> {
        let mut lines = Lines::open(&self.path, part.start)?;
        let mut is_ours = part.start == 0;
        let mut document = Vec::new();
        while let Some((offset, line)) = lines.next()? {
            if !line.is_empty() {
                if is_ours {
                    document.push(line.to_owned());
                }
                continue;
            }
            hand_over(&mut document, each)?;
            if offset >= part.end {
                return Ok(());
            }
            is_ours = true;
        }
        hand_over(&mut document, each)
    }

    fn each_article(
        &self,
        part: Range<u64>,
        each: &mut dyn FnMut(&[String]) -> Result<(), DataError>,
    ) -> Result<(), DataError> {
        let mut lines = Lines::open(&self.path, part.start)?;
        let mut place = if part.start == 0 { Article::Outside } else { Article::OfAnotherPart };
        let mut document = Vec::new();
        while let Some((offset, line)) = lines.next()? {
            let error =
                |problem: &str| Err(DataError::content(&self.path, FilePosition::Byte(offset), problem, WIKI_LAYOUT));
            let opens = line.starts_with("<doc ");
            match place {
                Article::Inside if opens => return error("<doc ...> within a document"),
                Article::Outside | Article::OfAnotherPart if opens => {
                    if offset >= part.end {
                        return Ok(());
                    }
                    place = Article::Title;
                }
                Article::Title | Article::Inside if line == "</doc>" => {
                    hand_over(&mut document, each)?;
                    place = Article::Outside;
                }
                Article::Title if !line.is_empty() => place = Article::Inside,
                Article::Inside if !line.is_empty() => document.push(line.to_owned()),
                Article::Outside if !line.is_empty() => return error("text outside of a document"),
                _ => {}
            }
        }
        match place {
            Article::Title | Article::Inside => {
                let problem = "the file ends within a document";
                Err(DataError::content(&self.path, FilePosition::Byte(self.bytes), problem, WIKI_LAYOUT))
            }
            Article::Outside | Article::OfAnotherPart => Ok(()),
        }
    }
}

/// Where a line of WikiExtractor's is.
#[derive(Clone, Copy)]
enum Article {
    OfAnotherPart,
    Outside,
    /// Before the first line of a document, which repeats its title and is left out.
    Title,
    Inside,
}

fn hand_over(
    document: &mut Vec<String>,
    each: &mut dyn FnMut(&[String]) -> Result<(), DataError>,
) -> Result<(), DataError> {
    if !document.is_empty() {
        each(document)?;
        document.clear();
    }
    Ok(())
}

/// The lines of a file, with the offsets at which they begin.
struct Lines<'a> {
    path: &'a Path,
    reader: BufReader<File>,
    offset: u64,
    line: Vec<u8>,
}

impl<'a> Lines<'a> {
    /// The lines that begin at byte `start` or after it.
    fn open(path: &'a Path, start: u64) -> Result<Self, DataError> {
        let mut file = File::open(path).map_err(DataError::io(path, "open the file"))?;
        let offset = start.saturating_sub(1);
        file.seek(SeekFrom::Start(offset)).map_err(DataError::io(path, "read the file"))?;
        let mut lines = Self { path, reader: BufReader::with_capacity(1 << 18, file), offset, line: Vec::new() };
        if start > 0 {
            lines.read()?;
        }
        Ok(lines)
    }

    fn read(&mut self) -> Result<(), DataError> {
        self.line.clear();
        let read = self.reader.read_until(b'\n', &mut self.line).map_err(DataError::io(self.path, "read the file"))?;
        self.offset += read as u64;
        Ok(())
    }

    /// The next line, without blanks around it, and where it begins.
    fn next(&mut self) -> Result<Option<(u64, &str)>, DataError> {
        let start = self.offset;
        self.read()?;
        if self.line.is_empty() {
            return Ok(None);
        }
        let text = std::str::from_utf8(&self.line).map_err(|error| {
            let place = FilePosition::Byte(start + error.valid_up_to() as u64);
            DataError::content(self.path, place, "not UTF-8", "UTF-8 text")
        })?;
        let text = if start == 0 { text.trim_start_matches('\u{feff}') } else { text };
        Ok(Some((start, text.trim())))
    }
}

#[cfg(test)]
mod tests;
