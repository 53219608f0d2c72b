//! Turns in the page: streaming, cancel, steering, handovers and failures.
use crate::chat_page::ChatPage;
use serde_json::{Value, json};
use std::sync::Arc;
use tempfile::TempDir;
use tokio::sync::Notify;
use turnway_tests::real::agent::{Agents, Reply};
use turnway_tests::real::devtools::Browser;
use turnway_tests::real::node::Node;
use turnway_tests::real::web::Web;

/// Covers: MP-A3, MP-T10.
#[tokio::test]
async fn turn_streams_and_ends_without_complaints() {
    let dir = TempDir::new().expect("a directory");
    let node = Node::start(dir.path(), &["--demo"]).await;
    let browser = Browser::start(dir.path()).await;
    let mut page = ChatPage::open(&browser, node.http).await;
    page.send("héllo 語").await;
    assert_eq!(page.answers(1).await, ["héllo 語"]);
    // Finished text is announced once, not each piece.
    let live = "document.querySelector('[role=status].unseen').textContent";
    assert_eq!(page.until(&format!("{live}.includes('語') && {live}")).await, "echo answered: héllo 語");
    assert_eq!(page.value("document.querySelector('.log').ariaLive").await, "off");
    page.send("@counter count to 5 every 50ms").await;
    // Text appears before the end.
    page.until("document.querySelector('[data-phase=running] .markdown')").await;
    assert_eq!(page.answers(2).await[1], "1\n2\n3\n4\n5");
    // The same conversation is there after a reload, from the log alone.
    page.reload().await;
    assert_eq!(page.answers(2).await, ["héllo 語", "1\n2\n3\n4\n5"]);
    assert_eq!(page.value(live).await, "");
    assert_eq!(page.complaints().await, [""; 0]);
    // A violation of the policy would be among the complaints, and an inline script does not run.
    let inline = "const script = document.createElement('script'); script.append('window.ran = 1'); document.body.append(script)";
    page.value(&format!("(() => {{ try {{ {inline} }} catch {{}} }})()")).await;
    assert_eq!(page.value("window.ran ?? null").await, Value::Null);
    assert!(!page.complaints().await.is_empty());
}

/// Covers: MP-C6.
#[tokio::test]
async fn stop_button_cancels_the_answer() {
    let dir = TempDir::new().expect("a directory");
    let node = Node::start(dir.path(), &["--demo"]).await;
    let browser = Browser::start(dir.path()).await;
    let mut page = ChatPage::open(&browser, node.http).await;
    page.send("@counter count to 1000 every 20ms").await;
    page.shows("3").await;
    page.click("#stop").await;
    page.answers(1).await;
    page.shows("Stopped.").await;
    page.until("!document.getElementById('stop')").await;
    let session = page.session().await;
    let facts = Web::new(node.http, None).facts(&session).await;
    assert_eq!(facts.iter().filter(|fact| fact["type"] == "run.cancelled").count(), 1);
    // A waiting message can be withdrawn.
    page.send("@counter count to 1000 every 20ms").await;
    page.choose("#strategy", "enqueue").await;
    page.send("later").await;
    page.click("[data-phase=waiting] .hint button").await;
    page.answers(2).await;
    page.click("#stop").await;
    page.answers(3).await;
}

/// Sends a message into a running answer of an agent that accepts it.
#[tokio::test]
async fn steered_message_joins_the_answer() {
    let dir = TempDir::new().expect("a directory");
    let node = Node::start(dir.path(), &["--demo"]).await;
    let browser = Browser::start(dir.path()).await;
    let mut page = ChatPage::open(&browser, node.http).await;
    page.send("@counter count to 1000 every 50ms").await;
    page.shows("3").await;
    page.send("to 80").await;
    page.shows("Taken into the answer above.").await;
    let answers = page.answers(2).await;
    assert!(answers[0].ends_with("\n79\n80"), "{answers:?}");
    assert_eq!(answers[1], "");
}

/// Covers: SR-F2, SR-F4.
#[tokio::test]
async fn handover_is_decided_in_the_page() {
    let agents = Agents::start(|asked| {
        Reply::speak(|stream| async move {
            stream.delta(&format!("{} here", asked.agent)).await?;
            if asked.text.starts_with("ask") {
                let request = json!({"to": "bob", "reason": "sums", "summary": "they want 2+2"});
                stream.event("handover_request", &request).await?;
            }
            stream.done().await
        })
    });
    let agents = agents.await;
    let dir = TempDir::new().expect("a directory");
    let flags = [agents.flag("ada"), agents.flag("bob")];
    let node = Node::start(dir.path(), &["--demo", "--agent", &flags[0], "--agent", &flags[1]]).await;
    let browser = Browser::start(dir.path()).await;
    let mut page = ChatPage::open(&browser, node.http).await;
    page.send("ask").await;
    page.until("document.querySelector('[data-handover]').textContent.includes('they want 2+2')").await;
    page.click("[data-handover] button:not(.primary)").await;
    page.until("!document.querySelector('[data-handover]')").await;
    page.answers(1).await;
    page.send("ask again").await;
    page.until("document.querySelector('[data-handover]').textContent.includes('sums')").await;
    // The prompt is still there after a reload, and the decision counts.
    page.answers(2).await;
    page.reload().await;
    page.click("[data-handover] .primary").await;
    page.until("document.querySelector('.agent select').value == 'bob'").await;
    page.until("!document.querySelector('[data-handover]')").await;
    page.send("who is there").await;
    assert_eq!(page.answers(3).await, ["ada here", "ada here", "bob here"]);
    assert_eq!(page.complaints().await, [""; 0]);
}

/// Tells a failure with its code, in words, and when to ask again.
///
/// Covers: LN-MP7.
#[tokio::test]
async fn failed_turn_is_told_with_code_and_retry() {
    let agents = Agents::start(|_| {
        Reply::speak(|stream| async move {
            stream.delta("part").await?;
            stream.event("error", &json!({"code": "out_of_ideas", "message": "no idea"})).await
        })
    });
    let agents = agents.await;
    let dir = TempDir::new().expect("a directory");
    let node = Node::start(dir.path(), &["--demo", "--agent", &agents.flag("ada")]).await;
    let browser = Browser::start(dir.path()).await;
    let mut page = ChatPage::open(&browser, node.http).await;
    page.send("idea").await;
    assert_eq!(page.answers(1).await, ["part"]);
    page.until("document.querySelector('.failure code').textContent == 'agent_error'").await;
    page.shows("The agent reported an error.").await;
    page.click(".failure button").await;
    assert_eq!(page.answers(2).await, ["part", "part"]);
}

/// Shows reasoning and agent states beside the answer, and neither as part of it.
///
/// Covers: MP-A3.
#[tokio::test]
async fn reasoning_is_shown_apart_from_the_answer() {
    let go_on = Arc::new(Notify::new());
    let agents = Agents::start({
        let go_on = Arc::clone(&go_on);
        move |_| {
            let go_on = Arc::clone(&go_on);
            Reply::speak(|stream| async move {
                stream.event("delta", &json!({"text": "let me think", "kind": "reasoning"})).await?;
                stream.event("state", &json!({"state": "searching"})).await?;
                go_on.notified().await;
                stream.delta("found").await?;
                stream.done().await
            })
        }
    });
    let agents = agents.await;
    let dir = TempDir::new().expect("a directory");
    let node = Node::start(dir.path(), &["--demo", "--agent", &agents.flag("ada")]).await;
    let browser = Browser::start(dir.path()).await;
    let mut page = ChatPage::open(&browser, node.http).await;
    page.send("where").await;
    page.until("document.querySelector('.working').textContent == 'searching…'").await;
    page.until("document.querySelector('.answer details').textContent == 'Reasoninglet me think'").await;
    go_on.notify_one();
    assert_eq!(page.answers(1).await, ["found"]);
}

/// Refuses a message in the page that the node would close the connection for.
#[tokio::test]
async fn too_long_message_is_refused_and_kept_as_a_draft() {
    let dir = TempDir::new().expect("a directory");
    let node = Node::start(dir.path(), &["--demo"]).await;
    let browser = Browser::start(dir.path()).await;
    let mut page = ChatPage::open(&browser, node.http).await;
    let longest = "語".repeat(16 * 1024 - 1);
    page.send(&longest).await;
    assert_eq!(page.answers(1).await.concat(), longest);
    let long = longest + "語語";
    page.send(&long).await;
    page.until("document.querySelector('.notice[role=alert] code').textContent == 'too_large'").await;
    assert_eq!(page.draft().await.as_str(), Some(long.as_str()));
    assert_eq!(page.complaints().await, [""; 0]);
}
