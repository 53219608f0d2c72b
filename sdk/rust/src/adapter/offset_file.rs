//! The file with the offset of the last settled event. A crash leaves the old or the new offset.
use crate::adapter::event::SettledEvent;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// A file with an offset of the platform's stream of events. One process at a time may use the file.
#[derive(Clone, Debug)]
pub struct OffsetFile {
    path: PathBuf,
    /// Held while the file is replaced.
    writing: Arc<Mutex<()>>,
}

// === impl OffsetFile ===

impl OffsetFile {
    /// Names the file; nothing is read yet.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), writing: Arc::default() }
    }

    /// Returns the saved offset; none if there is no file yet.
    ///
    /// # Errors
    /// The file cannot be read, or is empty.
    pub fn read(&self) -> io::Result<Option<String>> {
        let text = match fs::read_to_string(&self.path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        match text.trim() {
            "" => {
                let why = "is empty: write the offset to continue from into it, or delete it";
                Err(io::Error::new(ErrorKind::InvalidData, format!("{} {why}", self.path.display())))
            }
            offset => Ok(Some(offset.to_owned())),
        }
    }

    /// Saves the offset behind an event that has its final answer. The offset is on disk when the call returns.
    ///
    /// # Errors
    /// The offset is empty or has several lines, or the file cannot be replaced.
    pub fn advance(&self, offset: &str, _settled: &SettledEvent) -> io::Result<()> {
        self.save(offset)
    }

    /// Saves an offset. The adapter calls it after the final answers to all events before the offset.
    pub(crate) fn save(&self, offset: &str) -> io::Result<()> {
        let offset = offset.trim();
        if offset.is_empty() || offset.contains('\n') {
            let why = format!("{offset:?} is no offset: it must be one line, and not empty");
            return Err(io::Error::new(ErrorKind::InvalidInput, why));
        }
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut fresh = OsString::from(&self.path);
        fresh.push(".new");
        let mut file = File::create(&fresh)?;
        file.write_all(format!("{offset}\n").as_bytes())?;
        file.sync_all()?;
        fs::rename(&fresh, &self.path)?;
        self.sync_folder()
    }

    /// Makes the new name survive a loss of power, too. Only Unix can open a folder.
    fn sync_folder(&self) -> io::Result<()> {
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        if cfg!(unix) { File::open(folder.unwrap_or(Path::new(".")))?.sync_all() } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::invoke::fresh_id;

    /// An offset file in a directory of its own, which is removed with it.
    struct Fixture {
        file: OffsetFile,
        dir: PathBuf,
    }

    impl Fixture {
        fn new() -> Self {
            let dir = std::env::temp_dir().join(format!("turnway-offset-{}", fresh_id()));
            fs::create_dir(&dir).expect("a directory");
            Self { file: OffsetFile::new(dir.join("offset")), dir }
        }
    }

    impl Drop for Fixture {
        fn drop(&mut self) {
            // A directory that stays is removed with the others of the system.
            _ = fs::remove_dir_all(&self.dir);
        }
    }

    fn settled() -> SettledEvent {
        SettledEvent::refused("not_found".to_owned())
    }

    /// Covers: BR-26.
    #[test]
    fn offset_is_saved_with_the_answer_to_its_event() {
        let it = Fixture::new();
        assert_eq!(it.file.read().expect("readable"), None);
        for offset in ["7", " 8 ", "a longer offset"] {
            it.file.advance(offset, &settled()).expect("it is saved");
            assert_eq!(it.file.read().expect("readable").as_deref(), Some(offset.trim()));
        }
        let names: Vec<_> =
            fs::read_dir(&it.dir).expect("readable").map(|entry| entry.expect("an entry").file_name()).collect();
        assert_eq!(names, ["offset"], "nothing else is left");
    }

    #[test]
    fn empty_offset_file_is_an_error() {
        let it = Fixture::new();
        fs::write(it.dir.join("offset"), "\n").expect("writable");
        let error = it.file.read().expect_err("an error").to_string();
        assert!(error.contains("is empty: write the offset"), "{error}");
    }

    #[test]
    fn offset_of_several_lines_is_refused() {
        let it = Fixture::new();
        for offset in ["", " ", "1\n2"] {
            it.file.advance(offset, &settled()).expect_err("refused");
        }
        assert_eq!(it.file.read().expect("readable"), None);
    }
}
