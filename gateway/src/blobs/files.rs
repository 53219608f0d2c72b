//! Bodies as files beside an embedded store: `TENANT/SESSION/BODY`, with encoded names. A file is synced before its name is
//! given away, and so are the directories that lead to it.
use super::{BodyError, PART_BYTES};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::{Bytes, BytesMut};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::fs::{self, File};
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufWriter};
use turnway_core::id::{BodyId, SessionId, SessionKey, TenantId};

/// Bytes that are written at a time. The runtime's file keeps a copy of them, so that both together are a part.
const WRITTEN_BYTES: usize = PART_BYTES / 2;

/// Bodies below a directory.
#[derive(Clone, Debug)]
pub struct FileBodies {
    root: Arc<Path>,
    /// Files and directories are synced.
    is_synced: bool,
}

/// A file that is being written. Dropped before its end, it is removed.
#[derive(Debug)]
pub struct FileWriter {
    file: BufWriter<File>,
    path: PathBuf,
    is_synced: bool,
    is_finished: bool,
}

/// A file that is being read.
#[derive(Debug)]
pub struct FileReader(File);

/// Encodes a name in characters that are safe in a path. Paths must differ by case.
pub(super) fn encode(name: &str) -> String {
    URL_SAFE_NO_PAD.encode(name)
}

/// Decodes a name that [`encode`] has encoded; none if it is something else.
pub(super) fn decode(name: &str) -> Option<String> {
    String::from_utf8(URL_SAFE_NO_PAD.decode(name).ok()?).ok()
}

/// Syncs a directory, so that its entries survive a loss of power.
async fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path).await?.sync_all().await
}

// === impl FileBodies ===

impl FileBodies {
    /// Stores bodies below a directory, which is made with the first of them.
    pub fn new(root: PathBuf, is_synced: bool) -> Self {
        Self { root: root.into(), is_synced }
    }

    fn directory(&self, session: &SessionKey) -> PathBuf {
        self.root.join(encode(session.tenant.as_str())).join(encode(session.session.as_str()))
    }

    fn path(&self, session: &SessionKey, body: BodyId) -> PathBuf {
        self.directory(session).join(body.to_string())
    }

    pub(super) async fn begin(&self, session: &SessionKey, body: BodyId) -> Result<FileWriter, BodyError> {
        let directory = self.directory(session);
        if !fs::try_exists(&directory).await? {
            fs::create_dir_all(&directory).await?;
            if self.is_synced {
                // From the tenant's directory up to the one that has the root.
                for above in directory.ancestors().skip(1).take(3) {
                    sync_directory(above).await?;
                }
            }
        }
        let path = directory.join(body.to_string());
        let file = File::create_new(&path).await?;
        let file = BufWriter::with_capacity(WRITTEN_BYTES, file);
        Ok(FileWriter { file, path, is_synced: self.is_synced, is_finished: false })
    }

    pub(super) async fn open(&self, session: &SessionKey, body: BodyId) -> Result<FileReader, BodyError> {
        Ok(FileReader(File::open(self.path(session, body)).await?))
    }

    pub(super) async fn delete(&self, session: &SessionKey, body: BodyId) -> Result<(), BodyError> {
        match fs::remove_file(self.path(session, body)).await {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
            Ok(()) | Err(_) => {}
        }
        // Fails as long as the session has other bodies.
        let _ = fs::remove_dir(self.directory(session)).await;
        Ok(())
    }

    pub(super) async fn sessions(&self) -> Result<Vec<SessionKey>, BodyError> {
        let mut sessions = Vec::new();
        for tenant in names_in(&self.root).await? {
            let Some(parsed) = tenant.to_str().and_then(decode).and_then(|name| TenantId::parse(&name).ok()) else {
                continue;
            };
            for session in names_in(&self.root.join(tenant)).await? {
                let session = session.to_str().and_then(decode).and_then(|name| SessionId::parse(&name).ok());
                sessions.extend(session.map(|session| SessionKey { tenant: parsed.clone(), session }));
            }
        }
        Ok(sessions)
    }

    pub(super) async fn bodies(&self, session: &SessionKey) -> Result<Vec<BodyId>, BodyError> {
        let names = names_in(&self.directory(session)).await?;
        Ok(names.iter().filter_map(|name| BodyId::parse(name.to_str()?)).collect())
    }
}

/// Returns the names in a directory; none if there is no such directory.
async fn names_in(directory: &Path) -> Result<Vec<std::ffi::OsString>, BodyError> {
    let mut entries = match fs::read_dir(directory).await {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error.into()),
    };
    let mut names = Vec::new();
    while let Some(entry) = entries.next_entry().await? {
        names.push(entry.file_name());
    }
    Ok(names)
}

// === impl FileWriter ===

impl FileWriter {
    pub(super) async fn write(&mut self, bytes: &[u8]) -> Result<(), BodyError> {
        Ok(self.file.write_all(bytes).await?)
    }

    pub(super) async fn finish(mut self) -> Result<(), BodyError> {
        self.file.flush().await?;
        if self.is_synced {
            self.file.get_ref().sync_all().await?;
            if let Some(directory) = self.path.parent() {
                sync_directory(directory).await?;
            }
        }
        self.is_finished = true;
        Ok(())
    }
}

impl Drop for FileWriter {
    fn drop(&mut self) {
        if !self.is_finished {
            // Whatever stays behind is removed by the sweep.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

// === impl FileReader ===

impl FileReader {
    pub(super) async fn next_part(&mut self) -> Result<Option<Bytes>, BodyError> {
        let mut part = BytesMut::with_capacity(PART_BYTES);
        while part.len() < PART_BYTES {
            if self.0.read_buf(&mut part).await? == 0 {
                break;
            }
        }
        Ok((!part.is_empty()).then(|| part.freeze()))
    }
}
