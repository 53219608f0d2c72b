//! The page when the connection or the node dies: resume at the byte, the draft, and inputs that are sent again.
use crate::chat_page::{ChatPage, strings};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::sync::Notify;
use turnway_tests::real::agent::{AgentStream, Agents, HungUp, Reply};
use turnway_tests::real::devtools::{Browser, DESKTOP};
use turnway_tests::real::node::Node;
use turnway_tests::real::web::Web;

/// Time from the start of the next node to the whole answer in the page.
const BACK_WITHIN: Duration = Duration::from_secs(5);
/// A draft of 40 characters.
const DRAFT: &str = "forty characters of a draft, kept: 語 aßb";
/// A piece of an answer, with characters of each UTF-8 width.
const PIECE: &str = "aß語𝄞 word ";

/// Sends half of an answer, waits, and sends the rest.
async fn halves(stream: AgentStream, go_on: Arc<Notify>) -> Result<(), HungUp> {
    for _ in 0..10 {
        stream.delta(PIECE).await?;
    }
    stream.delta("half ").await?;
    go_on.notified().await;
    for _ in 0..10 {
        stream.delta(PIECE).await?;
    }
    stream.delta("end").await?;
    stream.done().await
}

/// Returns the text of the last answer in the log.
async fn logged(node: &Node, session: &str) -> String {
    let path = format!("/v1/sessions/{session}/messages");
    let page = Web::new(node.http, None).json(&path).await;
    let last = page["messages"].as_array().and_then(|all| all.last().cloned()).expect("messages");
    last["content"].as_str().expect("a text").to_owned()
}

/// Kills the node in the middle of an answer, with a draft in the page.
///
/// Covers: ST-2, RX-2, MP-T10, LN-TP33.
#[tokio::test]
async fn killed_node_costs_neither_answer_nor_draft() {
    assert_eq!(DRAFT.chars().count(), 40);
    let go_on = Arc::new(Notify::new());
    let agents = Agents::start({
        let go_on = Arc::clone(&go_on);
        move |_| {
            let go_on = Arc::clone(&go_on);
            Reply::outlive(move |stream| halves(stream, go_on))
        }
    });
    let agents = agents.await;
    let dir = TempDir::new().expect("a directory");
    let flag = agents.flag("ada") + ",on_owner_loss=resume";
    let mut node = Node::start(dir.path(), &["--demo", "--agent", &flag]).await;
    let browser = Browser::start(dir.path()).await;
    let mut page = ChatPage::open(&browser, node.http).await;
    let session = page.session().await;
    page.send("speak").await;
    page.shows("half").await;
    page.write("#message", DRAFT).await;
    node.kill().await;
    page.until("document.querySelector('.page:not([data-connection=connected])')").await;
    let begun = Instant::now();
    node.restart().await;
    page.connected().await;
    go_on.notify_one();
    let answers = page.answers(1).await;
    let took = begun.elapsed();
    let whole = format!("{half}half {half}end", half = PIECE.repeat(10));
    assert_eq!((answers, logged(&node, &session).await), (vec![whole.clone()], whole.clone()));
    assert_eq!((page.session().await, page.draft().await.as_str()), (session, Some(DRAFT)));
    assert!(took < BACK_WITHIN, "{took:?}");
    // The text was not sent again: the page had the first half, and the agent ran once.
    assert_eq!(agents.journal().len(), 1);
    page.reload().await;
    assert_eq!((page.answers(1).await, page.draft().await.as_str()), (vec![whole], Some(DRAFT)));
}

/// Loses the connection right after the input was sent, so that its answer is lost.
///
/// Covers: EV-N4.
#[tokio::test]
async fn input_without_an_answer_is_resent_and_accepted_once() {
    let dir = TempDir::new().expect("a directory");
    let node = Node::start(dir.path(), &["--demo"]).await;
    let browser = Browser::start(dir.path()).await;
    let mut tab = browser.tab(DESKTOP).await;
    tab.before_each_page(
        "window.invoked = [];
         const send = WebSocket.prototype.send;
         WebSocket.prototype.send = function (text) {
           send.call(this, text);
           const message = JSON.parse(text);
           if (message.type !== 'agent_invoke') return;
           window.invoked.push(message.request_id);
           if (window.invoked.length > 1) return;
           this.onmessage = null;
           this.close();
         };",
    )
    .await;
    let mut page = ChatPage::load_in(tab, node.http).await;
    page.connected().await;
    let session = page.session().await;
    page.send("once").await;
    assert_eq!(page.answers(1).await, ["once"]);
    let invoked = strings(&page.value("window.invoked").await);
    assert!(invoked.len() >= 2 && invoked.iter().all(|id| *id == invoked[0]), "{invoked:?}");
    let facts = Web::new(node.http, None).facts(&session).await;
    assert_eq!(facts.iter().filter(|fact| fact["type"] == "user.message").count(), 1);
    page.until("!document.querySelector('[data-pending]')").await;
}

/// Writes while the node is away: the input waits in the page, and survives a reload of it.
#[tokio::test]
async fn input_waits_for_the_node_to_come_back() {
    let dir = TempDir::new().expect("a directory");
    let mut node = Node::start(dir.path(), &["--demo"]).await;
    let browser = Browser::start(dir.path()).await;
    let mut page = ChatPage::open(&browser, node.http).await;
    node.kill().await;
    page.until("document.querySelector('.connection.lost')").await;
    page.send("patience").await;
    page.until("document.querySelector('[data-pending]').textContent.includes('Not sent yet')").await;
    node.restart().await;
    assert_eq!(page.answers(1).await, ["patience"]);
}

/// Covers: ST-2.
#[tokio::test]
async fn drained_node_sends_the_page_to_its_next_process() {
    let dir = TempDir::new().expect("a directory");
    let mut node = Node::start(dir.path(), &["--demo"]).await;
    let browser = Browser::start(dir.path()).await;
    let mut page = ChatPage::open(&browser, node.http).await;
    page.send("before").await;
    page.answers(1).await;
    assert_eq!(node.terminate().await, Some(0));
    node.restart().await;
    page.connected().await;
    page.send("after").await;
    assert_eq!(page.answers(2).await, ["before", "after"]);
}
