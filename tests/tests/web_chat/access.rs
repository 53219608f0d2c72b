//! API keys in the page: asked for once, sent in `hello` only, and refused in words.
use crate::chat_page::ChatPage;
use serde_json::{Value, json};
use std::net::SocketAddr;
use tempfile::TempDir;
use turnway_tests::real::devtools::{Browser, DESKTOP};
use turnway_tests::real::identity::{Key, guarded, pepper};
use turnway_tests::real::node::Node;

/// Covers: MP-D1, S-01.
#[tokio::test]
async fn refused_key_is_told_and_a_valid_key_connects() {
    let dir = TempDir::new().expect("a directory");
    let node = guarded(&dir, &["--demo"]).await;
    let key = Key::make(&node, &["--user", "ann"]).await;
    let browser = Browser::start(dir.path()).await;
    let mut tab = browser.tab(DESKTOP).await;
    tab.call("Network.enable", json!({})).await;
    let mut page = ChatPage::load_in(tab, node.http).await;
    page.until("document.querySelector('dialog[open] input[name=key]')").await;
    assert_eq!(page.value("document.activeElement.name").await, "key");
    assert_eq!(page.value("document.querySelector('dialog [role=alert]')").await, Value::Null);
    // Escape does not close a question that has to be answered.
    page.press("Escape").await;
    page.press("Escape").await;
    page.until("document.querySelector('dialog[open]') && document.activeElement.name == 'key'").await;
    page.write("dialog input", "twk_wrong_key").await;
    page.press("Enter").await;
    page.until("document.querySelector('dialog[open] [role=alert]').textContent.includes('does not accept this key')")
        .await;
    page.value("document.querySelector('dialog input').value = ''").await;
    page.write("dialog input", &key.text).await;
    page.press("Enter").await;
    page.connected().await;
    page.send("hello").await;
    assert_eq!(page.answers(1).await, ["hello"]);
    // No question after a reload of the tab, and nothing of the key where other tabs or servers see it.
    page.reload().await;
    assert_eq!(page.answers(1).await, ["hello"]);
    let stored = page.value("JSON.stringify(localStorage) + location.href + document.cookie").await;
    assert!(!stored.as_str().expect("a text").contains(&key.text));
    // A revoked key ends the connection, and the page asks again.
    key.revoke(&node).await;
    page.until("document.querySelector('dialog [role=alert]')").await;
    assert_eq!(page.value("sessionStorage.getItem('turnway.chat.v1.key')").await, Value::Null);
    assert_eq!(page.complaints().await, [""; 0]);
}

/// Forgets everything that the browser has stored.
#[tokio::test]
async fn sign_out_forgets_key_and_conversations() {
    let dir = TempDir::new().expect("a directory");
    let node = guarded(&dir, &["--demo"]).await;
    let key = Key::make(&node, &["--user", "ann"]).await;
    let browser = Browser::start(dir.path()).await;
    let mut page = ChatPage::load_in(browser.tab(DESKTOP).await, node.http).await;
    page.until("document.querySelector('dialog[open] input[name=key]')").await;
    page.write("dialog input", &key.text).await;
    page.press("Enter").await;
    page.connected().await;
    page.send("a secret title").await;
    page.answers(1).await;
    page.write("#message", "a secret draft").await;
    page.click("nav > .quiet").await;
    page.until("document.querySelector('dialog[open] input[name=key]')").await;
    let stored = page.value("JSON.stringify(localStorage) + JSON.stringify(sessionStorage)").await;
    let stored = stored.as_str().expect("a text");
    assert!(!stored.contains("secret") && !stored.contains(&key.text), "{stored}");
    let shown = page.value("document.body.textContent").await;
    assert!(!shown.as_str().expect("a text").contains("secret"), "{shown}");
}

/// Names the setting that lets the page in, because browsers hide the node's refusal.
///
/// Covers: S-09.
#[tokio::test]
async fn page_of_an_unlisted_origin_names_the_setting() {
    let dir = TempDir::new().expect("a directory");
    let pepper = pepper(dir.path());
    let flags = ["--auth", "keys", "--auth-pepper", pepper.to_str().expect("UTF-8"), "--hosts", "*", "--demo"];
    let node = Node::start_public(dir.path(), &flags).await;
    let browser = Browser::start(dir.path()).await;
    let local = SocketAddr::from(([127, 0, 0, 1], node.http.port()));
    let mut page = ChatPage::load_in(browser.tab(DESKTOP).await, local).await;
    page.shows_prompt("listen.origins").await;
    page.shows_prompt(&format!("http://{local}")).await;
}
