//! Tests of the places of bodies that need no server: files and memory.
use super::*;
use tempfile::tempdir;

fn session(tenant: &str, session: &str) -> SessionKey {
    use turnway_core::id::{SessionId, TenantId};
    SessionKey {
        tenant: TenantId::parse(tenant).expect("a tenant"),
        session: SessionId::parse(session).expect("a session"),
    }
}

async fn write(bodies: &BodyStore, session: &SessionKey, body: BodyId, parts: &[&'static [u8]]) {
    let length = parts.iter().map(|part| part.len() as u64).sum();
    let mut writer = bodies.begin(session, body, length).await.expect("a writer");
    for part in parts {
        writer.write(Bytes::from_static(part)).await.expect("room");
    }
    writer.finish().await.expect("stored");
}

async fn read(bodies: &BodyStore, session: &SessionKey, body: BodyId) -> Result<Vec<u8>, BodyError> {
    let mut reader = bodies.open(session, body).await?;
    let mut all = Vec::new();
    while let Some(part) = reader.next_part().await? {
        assert!(!part.is_empty() && part.len() <= PART_BYTES, "{}", part.len());
        all.extend_from_slice(&part);
    }
    Ok(all)
}

async fn check_bodies(bodies: &BodyStore) {
    let mine = session("default", "s1");
    // The same names elsewhere are other bodies.
    let others = [session("acme", "s1"), session("default", "S1"), session("default", "s1-")];
    let one = BodyId(1);
    let two = BodyId(u128::MAX);
    write(bodies, &mine, one, &[b"a", b"", b"bc"]).await;
    write(bodies, &mine, two, &[]).await;
    for other in &others {
        write(bodies, other, one, &[b"other"]).await;
    }
    assert_eq!(read(bodies, &mine, one).await.expect("there"), b"abc");
    assert_eq!(read(bodies, &mine, two).await.expect("there"), b"");
    assert!(matches!(read(bodies, &mine, BodyId(7)).await, Err(BodyError::Missing)));
    let mut found = bodies.sessions().await.expect("a list");
    found.sort();
    let mut expected = others.to_vec();
    expected.push(mine.clone());
    expected.sort();
    assert_eq!(found, expected);
    let mut found = bodies.bodies(&mine).await.expect("a list");
    found.sort();
    assert_eq!(found, [one, two]);
    // A body that is not there is ignored.
    bodies.delete(&mine, &[one, BodyId(7), two]).await;
    assert!(matches!(read(bodies, &mine, one).await, Err(BodyError::Missing)));
    assert!(bodies.bodies(&mine).await.expect("a list").is_empty());
    assert!(!bodies.sessions().await.expect("a list").contains(&mine));
    assert_eq!(read(bodies, &others[0], one).await.expect("untouched"), b"other");
}

#[tokio::test]
async fn files_are_stored_listed_and_deleted() {
    let dir = tempdir().expect("a directory");
    check_bodies(&BodyStore::Files(FileBodies::new(dir.path().join("blobs"), true))).await;
}

#[tokio::test]
async fn bodies_in_memory_are_stored_listed_and_deleted() {
    check_bodies(&BodyStore::Memory(MemoryBodies::default())).await;
}

#[tokio::test]
async fn unfinished_body_leaves_nothing() {
    let dir = tempdir().expect("a directory");
    for bodies in
        [BodyStore::Files(FileBodies::new(dir.path().join("blobs"), false)), BodyStore::Memory(MemoryBodies::default())]
    {
        let key = session("default", "s1");
        let mut writer = bodies.begin(&key, BodyId(1), 8).await.expect("a writer");
        writer.write(Bytes::from_static(b"half")).await.expect("room");
        drop(writer);
        assert!(bodies.bodies(&key).await.expect("a list").is_empty());
        assert!(matches!(read(&bodies, &key, BodyId(1)).await, Err(BodyError::Missing)));
    }
}

#[test]
fn full_disk_is_no_fault_of_the_file() {
    let of = |kind: io::ErrorKind| BodyError::from(io::Error::from(kind));
    assert!(matches!(of(io::ErrorKind::StorageFull), BodyError::Full));
    assert!(matches!(of(io::ErrorKind::QuotaExceeded), BodyError::Full));
    assert!(matches!(of(io::ErrorKind::NotFound), BodyError::Missing));
    assert!(matches!(of(io::ErrorKind::PermissionDenied), BodyError::File(_)));
}
