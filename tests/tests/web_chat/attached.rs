//! Files of drafts in the page: uploads, their refusals, and what is left of them after a reload or the death of a node.
use crate::chat_page::ChatPage;
use crate::pictures::picture;
use bytes::Bytes;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;
use turnway_tests::real::PATIENCE;
use turnway_tests::real::devtools::Browser;
use turnway_tests::real::files::random_bytes;
use turnway_tests::real::node::Node;
use turnway_tests::real::web::Web;
use turnway_tests::real::wire::WebSocketClient;

const MIB: usize = 1024 * 1024;

/// Starts a demo node with these settings.
async fn node_with(dir: &TempDir, settings: &str) -> Node {
    let file = dir.path().join("turnway.toml");
    std::fs::write(&file, format!("demo = true\n{settings}")).expect("a file");
    Node::start(dir.path(), &["--config", &*file.to_string_lossy()]).await
}

/// Writes a file that the page is to attach.
pub(crate) fn written(dir: &TempDir, name: &str, bytes: &Bytes) -> PathBuf {
    let path = dir.path().join(name);
    std::fs::write(&path, bytes).expect("a file");
    path
}

impl ChatPage {
    /// Chooses files with the button of the message field.
    pub(crate) async fn attach(&mut self, files: &[&Path]) {
        let input = json!({"expression": "document.getElementById('files')"});
        let input = self.call("Runtime.evaluate", input).await["result"]["objectId"].take();
        self.call("DOM.setFileInputFiles", json!({"files": files, "objectId": input})).await;
    }

    /// Waits until this many files of the draft are uploaded, and no others are there.
    pub(crate) async fn uploaded(&mut self, count: usize) {
        self.until(&format!(
            "document.querySelectorAll('[data-upload=stored]').length == {count}
             && document.querySelectorAll('[data-upload]').length == {count}"
        ))
        .await;
    }

    /// Waits until a file of the draft is refused with this code; returns what the page says.
    async fn refused(&mut self, code: &str) -> String {
        let shown = "document.querySelector('[data-upload=failed] [role=alert]')";
        let is_shown = format!("{shown}.querySelector('code').textContent == '{code}' && {shown}.textContent");
        self.until(&is_shown).await.as_str().expect("a text").to_owned()
    }

    /// Makes uploads slow, or fast again.
    async fn limit_uploads(&mut self, bytes_per_second: i64) {
        self.call("Network.enable", json!({})).await;
        let limits =
            json!({"offline": false, "latency": 0, "downloadThroughput": -1, "uploadThroughput": bytes_per_second});
        self.call("Network.emulateNetworkConditions", limits).await;
    }

    /// Gives the page files by an event, as a browser does when a person pastes or drops them.
    async fn hand_over(&mut self, selector: &str, event: &str) {
        let script = format!(
            "(() => {{
                const data = new DataTransfer();
                data.items.add(new File(['{event}'], '{event}.txt', {{type: 'text/plain'}}));
                const options = {{clipboardData: data, dataTransfer: data, bubbles: true, cancelable: true}};
                const event = '{event}' == 'paste' ? new ClipboardEvent('paste', options) : new DragEvent('drop', options);
                document.querySelector('{selector}').dispatchEvent(event);
                return event.defaultPrevented;
            }})()"
        );
        assert_eq!(self.value(&script).await, json!(true), "{event}");
    }

    /// Waits until the draft has files of these names.
    async fn shows_files(&mut self, names: &[&str]) {
        let shown = "[...document.querySelectorAll('[data-upload] .name')].map((name) => name.textContent).join()";
        self.until(&format!("{shown} == '{}'", names.join(","))).await;
    }
}

/// Returns the list of the shown session's files.
async fn listed(page: &mut ChatPage, web: &Web) -> Value {
    web.json(&format!("/v1/sessions/{}/blobs", page.session().await)).await
}

/// Returns the number of files in a list, and their bytes with the room that is kept.
fn count_and_bytes(list: &Value) -> (usize, u64) {
    (list["blobs"].as_array().map_or(0, Vec::len), list["bytes"].as_u64().expect("a number"))
}

/// Kills the node between the upload and the message, and loads the page again.
///
/// Covers: PR-24, ST-2.
#[tokio::test]
async fn draft_keeps_its_files_over_a_kill_and_a_reload() {
    let dir = TempDir::new().expect("a directory");
    let mut node = Node::start(dir.path(), &["--demo"]).await;
    let browser = Browser::start(dir.path()).await;
    let mut page = ChatPage::open(&browser, node.http).await;
    let picture = picture(1, 5 * MIB);
    let notes = Bytes::from_static(b"some notes");
    let files = [written(&dir, "cat.png", &picture), written(&dir, "notes.txt", &notes)];
    page.attach(&[&files[0], &files[1]]).await;
    page.uploaded(2).await;
    page.write("#message", "look at this").await;
    node.kill().await;
    page.until("document.querySelector('.page:not([data-connection=connected])')").await;
    node.restart().await;
    page.connected().await;
    page.uploaded(2).await;
    page.reload().await;
    page.uploaded(2).await;
    page.until("document.querySelector('[data-upload] img')?.naturalWidth == 64").await;
    assert_eq!(page.draft().await, "look at this");
    page.click("#send").await;
    page.answers(1).await;
    page.until("!document.querySelector('[data-upload]')").await;
    let web = Web::new(node.http, None);
    let session = page.session().await;
    let messages = web.json(&format!("/v1/sessions/{session}/messages")).await;
    let content = &messages["messages"][0]["content"];
    assert_eq!(content[0], json!({"type": "text", "text": "look at this"}));
    let read = async |path: &Value| web.download(path.as_str().expect("a path")).await.bytes;
    assert!(read(&content[1]["image_url"]["url"]).await == picture, "{content}");
    assert!(read(&content[2]["file"]["url"]).await == notes, "{content}");
    assert_eq!((&content[1]["type"], &content[2]["type"]), (&json!("image_url"), &json!("file")));
    assert_eq!(content[2]["file"]["filename"], "notes.txt");
    // The draft is empty after a reload, too.
    page.reload().await;
    page.answers(1).await;
    assert_eq!(page.value("document.querySelector('[data-upload]')").await, Value::Null);
}

/// Kills the node in the middle of an upload.
///
/// Covers: PR-24, ST-2.
#[tokio::test]
async fn broken_upload_is_repeated_once_the_node_is_back() {
    let dir = TempDir::new().expect("a directory");
    let mut node = Node::start(dir.path(), &["--demo"]).await;
    let browser = Browser::start(dir.path()).await;
    let mut page = ChatPage::open(&browser, node.http).await;
    let file = random_bytes(1, 5 * MIB);
    let path = written(&dir, "data.bin", &file);
    page.limit_uploads(MIB as i64 / 2).await;
    page.attach(&[&path]).await;
    page.until("document.querySelector('[data-upload=sending] progress').value > 0").await;
    page.until("document.getElementById('send').disabled && document.getElementById('send-obstacle')").await;
    // Enter sends no half draft either.
    page.send("look").await;
    assert_eq!((page.draft().await, page.value("document.querySelector('.turn')").await), ("look".into(), Value::Null));
    node.kill().await;
    page.until("document.querySelector('[data-upload]:not([data-upload=sending])')").await;
    page.limit_uploads(-1).await;
    node.restart().await;
    page.uploaded(1).await;
    let list = listed(&mut page, &Web::new(node.http, None)).await;
    assert_eq!(list["blobs"].as_array().map(Vec::len), Some(1), "{list}");
    assert_eq!(list["blobs"][0]["bytes"], file.len());
    page.click("#send").await;
    page.answers(1).await;
}

/// Covers: PR-24.
#[tokio::test]
async fn unfinished_upload_is_shown_as_lost_after_a_reload() {
    let dir = TempDir::new().expect("a directory");
    let node = Node::start(dir.path(), &["--demo"]).await;
    let browser = Browser::start(dir.path()).await;
    let mut page = ChatPage::open(&browser, node.http).await;
    let small = written(&dir, "small.bin", &random_bytes(1, 100));
    page.attach(&[&small]).await;
    page.uploaded(1).await;
    page.limit_uploads(MIB as i64 / 8).await;
    let large = written(&dir, "large.bin", &random_bytes(2, 5 * MIB));
    page.attach(&[&large]).await;
    page.until("document.querySelector('[data-upload=sending] progress')").await;
    page.reload().await;
    page.until("document.querySelector('[data-upload=lost]').textContent.includes('large.bin')").await;
    page.until("document.querySelector('[data-upload=stored]').textContent.includes('small.bin')").await;
    assert_eq!(page.value("document.getElementById('send').disabled").await, json!(true));
    page.click("[data-upload=lost] button").await;
    page.uploaded(1).await;
    page.click("#send").await;
    page.answers(1).await;
    assert_eq!(page.complaints().await, [""; 0]);
}

/// Covers: PR-24, S-48.
#[tokio::test]
async fn full_quota_is_told_and_leaves_nothing_behind() {
    let dir = TempDir::new().expect("a directory");
    let node = node_with(&dir, "[quota]\nuser = \"3MiB\"\n").await;
    let browser = Browser::start(dir.path()).await;
    let mut page = ChatPage::open(&browser, node.http).await;
    let web = Web::new(node.http, None);
    let first = written(&dir, "first.bin", &random_bytes(1, 2 * MIB));
    let second = written(&dir, "second.bin", &random_bytes(2, 2 * MIB));
    page.attach(&[&first]).await;
    page.uploaded(1).await;
    page.attach(&[&second]).await;
    let said = page.refused("quota_exceeded").await;
    assert!(said.contains("The quota of stored data is used up."), "{said}");
    let list = listed(&mut page, &web).await;
    assert_eq!(count_and_bytes(&list), (1, 2 * MIB as u64), "{list}");
    assert_eq!(page.value("document.getElementById('send').disabled").await, json!(true));
    // The first file leaves the draft, and the session, as no message uses it.
    page.click("[data-upload=stored] [title=Remove]").await;
    await_files(&mut page, &web, 0).await;
    page.click("[data-upload=failed] .failure button").await;
    page.uploaded(1).await;
    let list = listed(&mut page, &web).await;
    assert_eq!(count_and_bytes(&list), (1, 2 * MIB as u64), "{list}");
}

/// Waits until the shown session has this many files.
async fn await_files(page: &mut ChatPage, web: &Web, count: usize) {
    let mut looks = tokio::time::interval(Duration::from_millis(20));
    let waited = tokio::time::timeout(PATIENCE, async {
        while count_and_bytes(&listed(page, web).await).0 != count {
            looks.tick().await;
        }
    });
    waited.await.expect("the files in time");
}

/// Covers: PR-24, LN-MP7.
#[tokio::test]
async fn refused_file_is_told_with_its_limit() {
    let dir = TempDir::new().expect("a directory");
    let node = node_with(&dir, "[blobs]\nmax = \"1MiB\"\ntypes = \"image/*|text/plain\"\n").await;
    let browser = Browser::start(dir.path()).await;
    let mut page = ChatPage::open(&browser, node.http).await;
    let remove = "[data-upload=failed] [title=Remove]";
    let large = written(&dir, "large.png", &picture(1, MIB + 1));
    page.attach(&[&large]).await;
    let said = page.refused("too_large").await;
    assert!(said.contains("The file is too large.") && said.contains("1048576"), "{said}");
    page.click(remove).await;
    // The page does not send what no node takes.
    let largest = written(&dir, "largest.png", &picture(2, 16 * MIB + 1));
    page.attach(&[&largest]).await;
    let said = page.refused("too_large").await;
    assert!(said.contains("16 MiB"), "{said}");
    page.click(remove).await;
    let page_file = written(&dir, "page.html", &Bytes::from_static(b"<p>"));
    page.attach(&[&page_file]).await;
    let said = page.refused("invalid_message").await;
    assert!(said.contains("does not take files of this type") && said.contains("text/html"), "{said}");
    page.click(remove).await;
    let small: Vec<PathBuf> = (0..11).map(|n| written(&dir, &format!("{n}.png"), &picture(n, 100))).collect();
    page.attach(&small.iter().map(PathBuf::as_path).collect::<Vec<_>>()).await;
    page.until("document.querySelector('.notice').textContent.includes('at most 10 files')").await;
    page.uploaded(10).await;
    page.send("ten").await;
    page.answers(1).await;
    let session = page.session().await;
    let mut operator = WebSocketClient::open(node.http).await.expect("open");
    operator = operator.greet_with(json!({"type": "hello"})).await.expect("let in");
    operator.ask("c", json!({"type": "session_close", "session_id": session})).await.expect("an answer");
    page.shows_prompt("This conversation is closed.").await;
    let late = written(&dir, "late.png", &picture(20, 100));
    page.attach(&[&late]).await;
    page.refused("session_closed").await;
    page.click(".prompt button").await;
    page.until("!document.querySelector('.prompt')").await;
    page.click("[data-upload=failed] .failure button").await;
    page.uploaded(1).await;
}

/// Covers: PR-24.
#[tokio::test]
async fn removed_file_is_deleted_unless_a_message_uses_it() {
    let dir = TempDir::new().expect("a directory");
    let node = Node::start(dir.path(), &["--demo"]).await;
    let browser = Browser::start(dir.path()).await;
    let mut page = ChatPage::open(&browser, node.http).await;
    let web = Web::new(node.http, None);
    let used = written(&dir, "used.png", &picture(1, 100));
    let unused = written(&dir, "unused.png", &picture(2, 100));
    page.attach(&[&used]).await;
    page.uploaded(1).await;
    page.send("").await;
    page.answers(1).await;
    // The title of a message without a text is the name of its file.
    page.until("document.querySelector('h1').textContent == 'used.png'").await;
    page.attach(&[&unused, &used]).await;
    page.uploaded(2).await;
    page.click("[data-upload]:nth-child(2) [title=Remove]").await;
    page.uploaded(1).await;
    page.click("[data-upload] [title=Remove]").await;
    page.uploaded(0).await;
    await_files(&mut page, &web, 1).await;
    let messages = web.json(&format!("/v1/sessions/{}/messages", page.session().await)).await;
    let path = messages["messages"][0]["content"][0]["image_url"]["url"].as_str().expect("a path");
    assert_eq!(web.download(path).await.bytes, picture(1, 100));
    assert_eq!(page.value("document.activeElement.id").await, "message");
}

/// Covers: PR-24.
#[tokio::test]
async fn files_are_pasted_and_dropped() {
    let dir = TempDir::new().expect("a directory");
    let node = Node::start(dir.path(), &["--demo"]).await;
    let browser = Browser::start(dir.path()).await;
    let mut page = ChatPage::open(&browser, node.http).await;
    page.hand_over("#message", "paste").await;
    page.uploaded(1).await;
    page.hand_over(".log", "drop").await;
    page.uploaded(2).await;
    page.shows_files(&["paste.txt", "drop.txt"]).await;
    let list = listed(&mut page, &Web::new(node.http, None)).await;
    let types = list["blobs"].as_array().expect("a list").iter().map(|blob| blob["media_type"].clone());
    assert_eq!(types.collect::<Vec<_>>(), ["text/plain", "text/plain"]);
}
