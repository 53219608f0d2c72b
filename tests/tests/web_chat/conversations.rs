//! The list of conversations, and several tabs.
use crate::chat_page::{ChatPage, strings};
use serde_json::{Value, json};
use tempfile::TempDir;
use turnway_tests::real::devtools::Browser;
use turnway_tests::real::node::Node;
use turnway_tests::real::web::Web;
use turnway_tests::real::wire::WebSocketClient;

/// Returns the titles in the list.
async fn titles(page: &mut ChatPage) -> Vec<String> {
    strings(&page.value("[...document.querySelectorAll('nav .entry')].map((entry) => entry.textContent)").await)
}

#[tokio::test]
async fn conversations_are_made_renamed_and_deleted() {
    let dir = TempDir::new().expect("a directory");
    let node = Node::start(dir.path(), &["--demo"]).await;
    let browser = Browser::start(dir.path()).await;
    let mut page = ChatPage::open(&browser, node.http).await;
    page.send("first words").await;
    page.answers(1).await;
    page.click("#new-conversation").await;
    page.until("document.querySelectorAll('nav .entry').length == 2 && !document.querySelector('.turn')").await;
    // An unused conversation is not made twice.
    page.click("#new-conversation").await;
    page.connected().await;
    page.send("second").await;
    page.answers(1).await;
    page.write("#message", "a draft of the second").await;
    assert_eq!(titles(&mut page).await, ["second", "first words"]);
    // Each conversation has its own turns and its own draft.
    page.click("nav li:nth-child(2) .entry").await;
    page.shows("first words").await;
    assert_eq!((page.answers(1).await, page.draft().await), (vec!["first words".to_owned()], "".into()));
    page.click("nav li:nth-child(2) [title=Rename]").await;
    page.until("document.querySelector('dialog[open]')").await;
    page.value("document.querySelector('dialog input').select()").await;
    page.write("dialog input", "renamed").await;
    page.press("Enter").await;
    page.until("document.querySelector('h1').textContent == 'renamed'").await;
    page.click("nav li:nth-child(2) [title^=Delete]").await;
    page.until("document.querySelector('dialog[open]')").await;
    page.click("dialog .primary").await;
    page.until("document.querySelectorAll('nav .entry').length == 1").await;
    page.until(
        "document.getElementById('message').value == 'a draft of the second' && !!document.querySelector('.turn')",
    )
    .await;
    page.reload().await;
    assert_eq!(
        (titles(&mut page).await, page.answers(1).await),
        (vec!["second".to_owned()], vec!["second".to_owned()])
    );
}

/// Covers: MP-T10.
#[tokio::test]
async fn two_tabs_show_the_same_session() {
    let dir = TempDir::new().expect("a directory");
    let node = Node::start(dir.path(), &["--demo"]).await;
    let browser = Browser::start(dir.path()).await;
    let mut one = ChatPage::open(&browser, node.http).await;
    let mut two = ChatPage::open(&browser, node.http).await;
    assert_eq!(one.session().await, two.session().await);
    one.send("from the first tab").await;
    assert_eq!(two.answers(1).await, ["from the first tab"]);
    two.send("@counter count to 30 every 20ms").await;
    one.until("document.querySelector('[data-phase=running] .markdown')").await;
    let expected = one.answers(2).await;
    assert_eq!(two.answers(2).await, expected);
    // A conversation that one tab makes is in the list of the other.
    one.click("#new-conversation").await;
    two.until("document.querySelectorAll('nav .entry').length == 2").await;
    assert_ne!(one.session().await, two.session().await);
    for page in [&mut one, &mut two] {
        assert_eq!(page.complaints().await, [""; 0]);
    }
}

#[tokio::test]
async fn agent_is_chosen_in_the_header() {
    let dir = TempDir::new().expect("a directory");
    // The default agent and the demo's are members of a new session, and `guest` is not.
    let flags =
        ["--demo", "--agent", "third=builtin:echo", "--agent", "guest=builtin:echo", "--default-agent", "third"];
    let node = Node::start(dir.path(), &flags).await;
    let browser = Browser::start(dir.path()).await;
    let mut page = ChatPage::open(&browser, node.http).await;
    for agent in ["counter", "guest", "echo", "third"] {
        page.choose(".agent select", agent).await;
        let is_chosen = format!("document.querySelector('.agent select').value == '{agent}'");
        page.until(&is_chosen).await;
    }
    assert_eq!(page.value("document.querySelector('.notice')").await, Value::Null);
}

/// Tells that a session is closed and opens it again; tells that a deleted one is gone.
#[tokio::test]
async fn closed_session_reopens_and_a_deleted_one_leaves() {
    let dir = TempDir::new().expect("a directory");
    let node = Node::start(dir.path(), &["--demo"]).await;
    let browser = Browser::start(dir.path()).await;
    let mut page = ChatPage::open(&browser, node.http).await;
    page.send("hello").await;
    page.answers(1).await;
    let session = page.session().await;
    let mut operator = WebSocketClient::open(node.http).await.expect("open");
    operator = operator.greet_with(json!({"type": "hello"})).await.expect("let in");
    let close = json!({"type": "session_close", "session_id": session});
    operator.ask("c", close).await.expect("an answer");
    page.shows_prompt("This conversation is closed.").await;
    page.until("document.getElementById('send').disabled").await;
    page.click(".prompt button").await;
    page.until("!document.querySelector('.prompt')").await;
    page.send("again").await;
    assert_eq!(page.answers(2).await, ["hello", "again"]);
    let path = format!("/v1/sessions/{session}");
    assert_eq!(Web::new(node.http, None).ask("DELETE", &path, &[], "").await.status, 204);
    page.load_again().await;
    page.shows_prompt("The gateway does not know this conversation").await;
    page.click(".prompt button").await;
    page.connected().await;
    assert_ne!(page.session().await, session);
}
