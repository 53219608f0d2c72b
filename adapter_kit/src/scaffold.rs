//! Scaffolds of adapters: the files of a new adapter in a language, from the templates of this crate. Called by the command
//! `turnway adapter new`; never changes a file that exists.
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// The placeholder for the adapter's name in templates.
const NAME: &str = "@NAME@";
/// Longest name: it is a channel, a package and a part of file names.
const NAME_BYTES_MAX: usize = 40;

/// A language with a template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScaffoldLanguage {
    Python,
    Rust,
    TypeScript,
}

/// The reason why no adapter was made.
#[derive(Debug, thiserror::Error)]
pub enum ScaffoldError {
    #[error("{} exists already; nothing is overwritten: choose another --dir", .0.display())]
    Exists(PathBuf),
    #[error("{}: {error}", path.display())]
    Io { path: PathBuf, error: io::Error },
}

type Template = (&'static str, &'static str);

const PYTHON: [Template; 2] = [
    ("README.md", include_str!("../templates/python/README.md")),
    ("adapter.py", include_str!("../templates/python/adapter.py")),
];
const RUST: [Template; 4] = [
    ("README.md", include_str!("../templates/rust/README.md")),
    // Not Cargo.toml: a package within a package would be left out of a published crate.
    ("Cargo.toml", include_str!("../templates/rust/Cargo.toml.template")),
    ("src/main.rs", include_str!("../templates/rust/src/main.rs.template")),
    ("src/platform.rs", include_str!("../templates/rust/src/platform.rs.template")),
];
const TYPESCRIPT: [Template; 3] = [
    ("README.md", include_str!("../templates/ts/README.md")),
    ("package.json", include_str!("../templates/ts/package.json")),
    ("adapter.ts", include_str!("../templates/ts/adapter.ts")),
];

/// Parses the name of an adapter, which is its channel and its package: a letter, then letters, digits and `-`.
pub fn parse_name(text: &str) -> Result<String, String> {
    let is_fit = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let begins = text.starts_with(|c: char| c.is_ascii_lowercase()) && !text.ends_with('-');
    if begins && text.len() <= NAME_BYTES_MAX && text.chars().all(is_fit) {
        return Ok(text.to_owned());
    }
    Err(format!("a name has at most {NAME_BYTES_MAX} of a-z, 0-9 and -, and begins with a letter"))
}

/// Writes the files of a new adapter into a directory, which is made if necessary; returns their paths.
pub fn create(name: &str, language: ScaffoldLanguage, dir: &Path) -> Result<Vec<PathBuf>, ScaffoldError> {
    let files: Vec<(PathBuf, &str)> = language.templates().iter().map(|(path, text)| (dir.join(path), *text)).collect();
    // Checked first, so that nothing is written beside a file that exists.
    if let Some((path, _)) = files.iter().find(|(path, _)| path.exists()) {
        return Err(ScaffoldError::Exists(path.clone()));
    }
    for (path, text) in &files {
        let failed = |error: io::Error| {
            let path = path.clone();
            if error.kind() == io::ErrorKind::AlreadyExists {
                ScaffoldError::Exists(path)
            } else {
                ScaffoldError::Io { path, error }
            }
        };
        fs::create_dir_all(path.parent().unwrap_or(dir)).map_err(failed)?;
        let mut file = File::create_new(path).map_err(failed)?;
        file.write_all(text.replace(NAME, name).as_bytes()).map_err(failed)?;
    }
    Ok(files.into_iter().map(|(path, _)| path).collect())
}

// === impl ScaffoldLanguage ===

impl ScaffoldLanguage {
    /// Parses the name of a language.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text {
            "python" => Ok(Self::Python),
            "rust" => Ok(Self::Rust),
            "ts" => Ok(Self::TypeScript),
            _ => Err("the languages are python, rust and ts".to_owned()),
        }
    }

    const fn templates(self) -> &'static [Template] {
        match self {
            Self::Python => &PYTHON,
            Self::Rust => &RUST,
            Self::TypeScript => &TYPESCRIPT,
        }
    }
}

impl fmt::Display for ScaffoldLanguage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Python => "python",
            Self::Rust => "rust",
            Self::TypeScript => "ts",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [ScaffoldLanguage; 3] = [ScaffoldLanguage::Python, ScaffoldLanguage::Rust, ScaffoldLanguage::TypeScript];

    /// Covers: BR-38.
    #[test]
    fn scaffold_has_its_name_and_no_placeholder() {
        for language in ALL {
            assert_eq!(ScaffoldLanguage::parse(&language.to_string()), Ok(language));
            let dir = tempfile::tempdir().expect("a directory");
            let files = create("my-chat", language, dir.path()).expect("new files");
            let texts: Vec<String> = files.iter().map(|path| fs::read_to_string(path).expect("a file")).collect();
            assert!(texts.iter().all(|text| !text.contains('@') || !text.contains(NAME)), "{language}");
            assert!(texts.iter().any(|text| text.contains("\"my-chat\"")), "{language}");
        }
    }

    #[test]
    fn existing_file_is_left_as_it_is() {
        for language in ALL {
            let dir = tempfile::tempdir().expect("a directory");
            let (last, _) = language.templates().last().expect("files");
            let path = dir.path().join(last);
            fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            fs::write(&path, "mine").expect("a file");
            let refused = create("my-chat", language, dir.path());
            assert!(matches!(&refused, Err(ScaffoldError::Exists(found)) if *found == path), "{refused:?}");
            assert_eq!(fs::read_to_string(&path).expect("a file"), "mine");
            assert!(!dir.path().join("README.md").exists(), "{language}: nothing is written beside it");
        }
    }

    #[test]
    fn name_must_fit_channels_and_packages() {
        for name in ["rooms", "my-chat", "a", "x1"] {
            assert_eq!(parse_name(name), Ok(name.to_owned()));
        }
        for name in ["", "-a", "a-", "1a", "A", "a_b", "a.b", "a b", "../a", &"a".repeat(41)] {
            assert!(parse_name(name).is_err(), "{name}");
        }
    }
}
