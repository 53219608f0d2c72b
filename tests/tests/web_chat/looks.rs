//! The page for all people: axe-core in both themes, the keyboard, and a narrow screen.
use crate::attached::written;
use crate::chat_page::ChatPage;
use crate::pictures::picture;
use bytes::Bytes;
use serde_json::{Value, json};
use std::path::Path;
use tempfile::TempDir;
use turnway_tests::real::devtools::{Browser, DESKTOP, Screen};
use turnway_tests::real::files::random_bytes;
use turnway_tests::real::node::Node;

/// The narrowest screen on which the page is usable.
const NARROW: Screen = Screen { width: 360, height: 640, is_dark: false };

/// Returns the violations that axe-core calls serious or critical, in the light and in the dark theme.
async fn violations(page: &mut ChatPage, screen: Screen) -> Vec<Value> {
    let axe = Path::new(env!("CARGO_MANIFEST_DIR")).join("../gateway/chat/node_modules/axe-core/axe.min.js");
    let axe = std::fs::read_to_string(axe).expect("axe-core, which `./test` installs in gateway/chat");
    page.value(&format!("if (!window.axe) {{ {axe} }}; 0")).await;
    let mut found = Vec::new();
    for is_dark in [false, true] {
        page.appear(Screen { is_dark, ..screen }).await;
        let ran = page
            .value(
                "axe.run().then(({violations, passes}) => ({
                    passes: passes.length,
                    bad: violations.filter(({impact}) => impact === 'serious' || impact === 'critical')
                        .map(({id, nodes}) => [id, nodes.map(({html, failureSummary}) => [html, failureSummary])]),
                }))",
            )
            .await;
        assert!(ran["passes"].as_u64() > Some(10), "axe-core has checked nothing: {ran}");
        found.extend(ran["bad"].as_array().expect("a list").iter().cloned());
    }
    page.appear(screen).await;
    found
}

/// Checks each state of the page that looks different.
#[tokio::test]
async fn page_has_no_serious_accessibility_violation() {
    let dir = TempDir::new().expect("a directory");
    let unreachable = "lost=http://127.0.0.1:1";
    let node = Node::start(dir.path(), &["--demo", "--agent", unreachable]).await;
    let browser = Browser::start(dir.path()).await;
    let mut page = ChatPage::open(&browser, node.http).await;
    assert_eq!(violations(&mut page, DESKTOP).await, [Value::Null; 0], "an empty conversation");
    page.write(
        "#message",
        "# Title\n\n**bold** `code` [link](https://a.example)\n\n```\ncode\n```\n\n| a | b |\n|---|---|\n| 1 | 2 |",
    )
    .await;
    page.click("#send").await;
    page.answers(1).await;
    page.send("@lost hello").await;
    page.until("document.querySelector('.failure, .notice')").await;
    page.send("@counter count to 1000 every 100ms").await;
    page.until("document.getElementById('stop')").await;
    assert_eq!(violations(&mut page, DESKTOP).await, [Value::Null; 0], "a running answer and a failure");
    page.appear(NARROW).await;
    page.click("#list-button").await;
    assert_eq!(violations(&mut page, NARROW).await, [Value::Null; 0], "the open list");
    page.click("nav [title=Rename]").await;
    page.until("document.querySelector('dialog[open]')").await;
    assert_eq!(violations(&mut page, NARROW).await, [Value::Null; 0], "a dialog");
}

/// Checks files in a draft and in a message, and a picture in large.
///
/// Covers: PR-24.
#[tokio::test]
async fn files_have_no_serious_accessibility_violation() {
    let dir = TempDir::new().expect("a directory");
    let node = Node::start(dir.path(), &["--demo"]).await;
    let browser = Browser::start(dir.path()).await;
    let mut page = ChatPage::open(&browser, node.http).await;
    let cat = written(&dir, "cat.png", &picture(1, 1000));
    let notes = written(&dir, "notes.txt", &Bytes::from_static(b"notes"));
    let large = written(&dir, "large.bin", &random_bytes(1, 16 * 1024 * 1024 + 1));
    page.attach(&[&cat, &notes]).await;
    page.uploaded(2).await;
    page.attach(&[&large]).await;
    page.until("document.querySelector('[data-upload=failed]')").await;
    page.until("document.querySelector('[data-upload] img')").await;
    assert_eq!(violations(&mut page, DESKTOP).await, [Value::Null; 0], "a draft with files");
    assert_eq!(violations(&mut page, NARROW).await, [Value::Null; 0], "a draft with files on a narrow screen");
    page.click("[data-upload=failed] [title=Remove]").await;
    page.send("look").await;
    page.answers(1).await;
    page.until("document.querySelector('.input .picture img') && document.querySelector('.input .download')").await;
    assert_eq!(violations(&mut page, DESKTOP).await, [Value::Null; 0], "a message with files");
    page.click(".input .picture").await;
    page.until("document.querySelector('dialog[open] img')?.naturalWidth == 64").await;
    assert_eq!(violations(&mut page, DESKTOP).await, [Value::Null; 0], "a picture in large");
}

#[tokio::test]
async fn narrow_page_is_used_by_keyboard_alone() {
    let dir = TempDir::new().expect("a directory");
    let node = Node::start(dir.path(), &["--demo"]).await;
    let browser = Browser::start(dir.path()).await;
    let mut page = ChatPage::load_in(browser.tab(NARROW).await, node.http).await;
    page.connected().await;
    let focus = "document.activeElement.id";
    assert_eq!(page.value(focus).await, "message");
    page.send(&"long_word_".repeat(30)).await;
    page.answers(1).await;
    let overflow =
        "document.documentElement.scrollWidth > innerWidth || document.querySelector('.log').scrollWidth > innerWidth";
    assert_eq!(page.value(overflow).await, json!(false));
    // The first step from the start of the page leads to the message field, the second to the list.
    page.value("document.querySelector('.skip').focus()").await;
    page.press("Tab").await;
    assert_eq!(page.value(focus).await, "list-button");
    assert_eq!(page.value("getComputedStyle(document.activeElement).outlineStyle").await, "solid");
    page.press("Enter").await;
    page.until("document.querySelector('nav.open')").await;
    page.until("document.activeElement.id == 'new-conversation'").await;
    page.press("Escape").await;
    page.until("!document.querySelector('nav.open') && document.activeElement.id == 'list-button'").await;
    page.press("Enter").await;
    page.until("document.activeElement.id == 'new-conversation'").await;
    page.press("Enter").await;
    page.until("!document.querySelector('nav.open') && !document.querySelector('.turn') && document.activeElement.id == 'message'").await;
}
