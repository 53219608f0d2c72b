//! Tests that an input stored for another node's session is published to that node in the same step.
use crate::store_client::{StoreClient, accept, ann, holder, key};
use redis::Value;
use tempfile::tempdir;
use turnway::bus::redis::inbox_channel;
use turnway::config::Durability;
use turnway_core::id::{ControlId, InboxPosition, NodeId, OwnershipSnapshot};
use turnway_core::protocol::input::{ControlEntry, ControlRequest};
use turnway_core::store::{Acceptance, Op, Reply};
use turnway_tests::real::redis::Redis;
use turnway_wire::peer::frame::PeerFrame;
use turnway_wire::peer::{OfferedEntry, PeerMessage};

/// Subscription to the channel of a node.
struct Inbox<'a>(redis::PubSub<'a>);

impl Inbox<'_> {
    fn words(&mut self) -> PeerMessage {
        let message = self.0.get_message().expect("a message");
        let PeerFrame { from, messages: mut words } = PeerFrame::decode(message.get_payload_bytes()).expect("a frame");
        assert_eq!((from, words.len()), (NodeId(1), 1));
        words.remove(0)
    }
}

async fn control(store: &mut StoreClient, id: &str) -> (Op, Acceptance) {
    let id = ControlId::parse(id).expect("a name");
    let user = ann().user;
    let control = ControlEntry { id, user, request_id: None, what: ControlRequest::Close };
    let op = Op::Control { key: key("s"), principal: ann(), control: control.into(), create: false };
    match store.ask(op.clone()).await {
        Ok(Reply::Accepted(accepted)) => (op, accepted),
        other => panic!("{other:?}"),
    }
}

/// Covers: S-14.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stored_input_is_published_to_the_owner_node() {
    let dir = tempdir().expect("a directory");
    let server = Redis::start(dir.path(), &[]);
    let mut store = StoreClient::open(&server.url(), Durability::Mem).await;
    let me = holder(1, 1);
    let other = holder(0xfe, u128::MAX / 3);
    store.era(me, true).await;
    assert_eq!(store.accept("s", "m1").await.expect("accepted").offer_receivers, None, "there is nobody to ring");
    let token = store.claim("s", other, OwnershipSnapshot::default()).await.token;
    let owner = OwnershipSnapshot { holder: Some(other), epoch: token.epoch };
    let unheard = store.accept("s", "m2").await.expect("accepted");
    assert_eq!((unheard.offer_receivers, unheard.owner), (Some(0), owner), "it listens to nothing");

    let mut connection = server.connection();
    let mut inbox = connection.as_pubsub();
    inbox.set_read_timeout(Some(turnway_tests::real::PATIENCE)).expect("a time");
    inbox.subscribe(inbox_channel(other.node)).expect("subscribed");
    let mut inbox = Inbox(inbox);
    let heard = store.accept("s", "m3").await.expect("accepted");
    assert_eq!(heard.offer_receivers, Some(1));
    let Op::Accept { input, .. } = accept("s", "m3") else { unreachable!("an accept") };
    let position = heard.position;
    let prev = unheard.position;
    let item = OfferedEntry::Input { position, prev, input };
    assert_eq!(inbox.words(), PeerMessage::Offer { key: key("s"), owner, item });

    // A duplicate is not published: the node that resends the input notifies the owner itself.
    let again = store.accept("s", "m3").await.expect("accepted");
    assert_eq!((again.duplicate, again.offer_receivers), (true, None));
    let (op, closed) = control(&mut store, "c1").await;
    let Op::Control { control: said, .. } = op else { unreachable!("a control entry") };
    let item = OfferedEntry::Control { position: closed.position, prev: InboxPosition(0), control: said };
    assert_eq!((closed.offer_receivers, inbox.words()), (Some(1), PeerMessage::Offer { key: key("s"), owner, item }));
    assert_eq!(control(&mut store, "c1").await.1.offer_receivers, None);

    // The owner's own inputs are not published, nor are those of a node without a lease, which has no registered
    // name.
    store.claim("t", me, OwnershipSnapshot::default()).await;
    assert_eq!(store.accept("t", "m1").await.expect("accepted").offer_receivers, None);
    store.ask(Op::Retire { holder: me }).await.expect("done");
    assert_eq!(store.accept("s", "m4").await.expect("accepted").offer_receivers, None);

    // A release that does not know this feature sends fewer arguments, and reads no further fields of the answer.
    let keys = ["own:{default/s}", "in:{default/s}", "dd:{default/s}"];
    let args = ["0", "ann", "0", "s.older", "hash", "9", "0", "{}", "21", "999999", "0", "0"];
    let call = [&["FCALL", "turnway1_accept", "3"], &keys[..], &args[..]].concat();
    let answer: Vec<String> = server.command(&call);
    assert_eq!((answer[0].as_str(), answer.len(), answer[10].as_str()), ("OK", 11, ""));
    let _: Value = server.command(&["PUBLISH", &inbox_channel(other.node), "end"]);
    assert_eq!(inbox.0.get_message().expect("a message").get_payload_bytes(), b"end");
}
