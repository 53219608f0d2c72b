//! Tests of the table of a session's blobs: room, limits, repetition and late uploads.
use super::*;

const NOW: Millis = Millis(1_000_000);

fn hash(byte: u8) -> BlobHash {
    BlobHash([byte; 32])
}

fn reserve_room(table: BlobTable, body: u128, bytes: u64) -> BlobReply {
    change_blobs(table, NOW, &BlobAction::Reserve { body: BodyId(body), bytes })
}

fn commit_bytes(table: BlobTable, body: u128, byte: u8, bytes: u64) -> BlobReply {
    let action = BlobAction::Commit { body: BodyId(body), hash: hash(byte), bytes, media_type: "image/png".to_owned() };
    change_blobs(table, NOW, &action)
}

/// Covers: PR-24.
#[test]
fn committed_upload_is_a_blob_and_counts_its_own_bytes() {
    let reserved = reserve_room(BlobTable::default(), 1, 100);
    assert_eq!((reserved.outcome, reserved.table.bytes()), (BlobOutcome::Applied, 100));
    let stored = commit_bytes(reserved.table, 1, 7, 60);
    assert_eq!((stored.outcome, stored.table.bytes()), (BlobOutcome::Applied, 60));
    assert!(stored.table.uploads.is_empty() && stored.dropped.is_empty());
    let repeated = commit_bytes(stored.table.clone(), 1, 7, 60);
    assert_eq!((repeated.outcome, &repeated.table), (BlobOutcome::Applied, &stored.table));
    assert!(repeated.dropped.is_empty(), "the bytes are in use");
    let reserved_again = reserve_room(stored.table.clone(), 1, 100);
    assert_eq!((reserved_again.outcome, reserved_again.table), (BlobOutcome::Applied, stored.table));
}

/// Covers: PR-24.
#[test]
fn second_upload_of_the_same_bytes_is_dropped() {
    let first = commit_bytes(reserve_room(BlobTable::default(), 1, 60).table, 1, 7, 60);
    let second = commit_bytes(reserve_room(first.table.clone(), 2, 60).table, 2, 7, 60);
    assert_eq!((second.outcome, second.dropped), (BlobOutcome::Applied, vec![BodyId(2)]));
    assert_eq!(second.table, first.table);
    let repeated = commit_bytes(second.table, 2, 7, 60);
    assert_eq!((repeated.outcome, repeated.dropped), (BlobOutcome::Applied, Vec::new()));
}

/// Covers: PR-24.
#[test]
fn late_upload_gives_its_room_back_and_cannot_be_committed() {
    let reserved = reserve_room(BlobTable::default(), 1, 100).table;
    let late = NOW.after(limits::UPLOAD_KEPT);
    let tended = change_blobs(reserved.clone(), Millis(late.0 - 1), &BlobAction::Tend);
    assert_eq!((&tended.table, tended.dropped), (&reserved, Vec::new()));
    let tended = change_blobs(reserved.clone(), late, &BlobAction::Tend);
    assert_eq!((tended.table.bytes(), tended.dropped), (0, vec![BodyId(1)]));
    let refused = commit_bytes(tended.table, 1, 7, 60);
    assert_eq!((refused.outcome, refused.table.bytes()), (BlobOutcome::Missing, 0));
    // As long as nobody has given its room away, a late upload counts.
    let media_type = "image/png".to_owned();
    let commit = BlobAction::Commit { body: BodyId(1), hash: hash(7), bytes: 60, media_type };
    let stored = change_blobs(reserved, late, &commit);
    assert_eq!((stored.outcome, stored.table.bytes()), (BlobOutcome::Applied, 60));
}

/// Covers: PR-24.
#[test]
fn upload_with_more_bytes_than_reserved_is_dropped() {
    let refused = commit_bytes(reserve_room(BlobTable::default(), 1, 60).table, 1, 7, 61);
    assert_eq!((refused.outcome, refused.dropped), (BlobOutcome::Missing, vec![BodyId(1)]));
    assert!(refused.table.is_empty());
}

/// Covers: PR-24.
#[test]
fn removed_blob_and_abandoned_upload_give_their_room_back() {
    let table = commit_bytes(reserve_room(BlobTable::default(), 1, 60).table, 1, 7, 60).table;
    let table = reserve_room(table, 2, 30).table;
    let abandoned = change_blobs(table, NOW, &BlobAction::Abandon { body: BodyId(2) });
    assert_eq!((abandoned.table.bytes(), abandoned.dropped), (60, vec![BodyId(2)]));
    let abandoned = change_blobs(abandoned.table, NOW, &BlobAction::Abandon { body: BodyId(1) });
    assert_eq!((abandoned.table.bytes(), abandoned.dropped), (60, Vec::new()), "a blob is no upload");
    let removed = change_blobs(abandoned.table, NOW, &BlobAction::Remove { hash: hash(7) });
    assert_eq!((removed.outcome, removed.dropped), (BlobOutcome::Applied, vec![BodyId(1)]));
    assert!(removed.table.is_empty());
    let repeated = change_blobs(removed.table, NOW, &BlobAction::Remove { hash: hash(7) });
    assert_eq!(repeated.outcome, BlobOutcome::Missing);
}

/// Covers: PR-24.
#[test]
fn session_has_a_limited_number_of_blobs_and_bytes() {
    let most = limits::SESSION_BLOB_BYTES_MAX;
    assert_eq!(reserve_room(BlobTable::default(), 1, most + 1).outcome, BlobOutcome::SessionFull);
    let full = reserve_room(BlobTable::default(), 1, most);
    assert_eq!(full.outcome, BlobOutcome::Applied);
    assert_eq!(reserve_room(full.table, 2, 1).outcome, BlobOutcome::SessionFull);
    let mut table = BlobTable::default();
    for body in 0..limits::SESSION_BLOBS_MAX as u128 {
        let reserved = reserve_room(table, body, 1);
        assert_eq!(reserved.outcome, BlobOutcome::Applied);
        table = reserved.table;
    }
    let refused = reserve_room(table, u128::MAX, 1);
    assert_eq!(refused.outcome, BlobOutcome::SessionFull);
    let freed = change_blobs(refused.table, NOW, &BlobAction::Abandon { body: BodyId(0) });
    assert_eq!(reserve_room(freed.table, u128::MAX, 1).outcome, BlobOutcome::Applied);
}

#[test]
fn table_is_written_and_read_as_json() {
    let table = commit_bytes(reserve_room(BlobTable::default(), 1, 60).table, 1, 7, 60).table;
    let table = reserve_room(table, 2, 30).table;
    let json = serde_json::to_string(&table).expect("written");
    assert_eq!(serde_json::from_str::<BlobTable>(&json).expect("read"), table);
    assert_eq!(serde_json::to_string(&BlobTable::default()).expect("written"), "{}");
    for wrong in ["", "07", &"0G".repeat(32), &"AB".repeat(32), &"00".repeat(33)] {
        assert_eq!(BlobHash::parse(wrong), None, "{wrong}");
    }
    assert_eq!(BlobHash::parse(&hash(0xab).to_string()), Some(hash(0xab)));
    for wrong in ["", "7", "+0000000000000000000000000000007", &"F".repeat(32)] {
        assert_eq!(BodyId::parse(wrong), None, "{wrong}");
    }
    assert_eq!(BodyId::parse(&BodyId(7).to_string()), Some(BodyId(7)));
}
