//! Checks that a binary was built from the present sources.
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// All source folders of a node.
const SOURCES: [&str; 11] = [
    "core/src",
    "wire/src",
    "bindings/src",
    "node/src",
    "tool_executor/src",
    "adapter_kit/src",
    "adapter_kit/templates",
    "pipeline/src",
    "gateway/src",
    "gateway/chat/dist",
    "sdk/rust/src",
];

/// Returns a source that is newer than a binary of this tree; `None` for binaries from elsewhere.
pub(super) fn newer_source(binary: &Path) -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent()?.canonicalize().ok()?;
    let binary = binary.canonicalize().ok()?;
    if !binary.starts_with(&root) {
        return None;
    }
    let built = modified(&binary)?;
    SOURCES.iter().find_map(|folder| newer_in(&root.join(folder), built))
}

fn newer_in(folder: &Path, than: SystemTime) -> Option<PathBuf> {
    std::fs::read_dir(folder).ok()?.flatten().find_map(|entry| {
        let path = entry.path();
        if path.is_dir() {
            return newer_in(&path, than);
        }
        let kind = path.extension().and_then(|kind| kind.to_str()).unwrap_or_default();
        let is_source = ["rs", "lua", "js", "css", "html", "svg", "py", "ts", "template"].contains(&kind);
        (is_source && modified(&path)? > than).then_some(path)
    })
}

fn modified(path: &Path) -> Option<SystemTime> {
    path.metadata().ok()?.modified().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_newer_than_a_binary_is_found() {
        let dir = tempfile::tempdir().expect("a directory");
        let old = dir.path().join("old.rs");
        let new = dir.path().join("deep");
        std::fs::create_dir(&new).expect("a directory");
        let new = new.join("new.rs");
        std::fs::write(&old, "").expect("a file");
        std::fs::write(&new, "").expect("a file");
        let at = |path: &Path, seconds: u64| {
            let time = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
            std::fs::File::options().write(true).open(path).and_then(|file| file.set_modified(time)).expect("set");
            time
        };
        at(&old, 100);
        at(&new, 200);
        let built = |seconds| SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
        assert_eq!(newer_in(dir.path(), built(150)), Some(new));
        assert_eq!(newer_in(dir.path(), built(200)), None);
    }
}
