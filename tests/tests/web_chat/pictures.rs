//! Pictures and files in messages: what is shown, from where it may come, and how much of it the page holds.
use crate::attached::written;
use crate::chat_page::ChatPage;
use bytes::Bytes;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::{mpsc, oneshot};
use turnway_tests::real::agent::{Agents, Invocation, Reply};
use turnway_tests::real::devtools::{Browser, DESKTOP, Screen};
use turnway_tests::real::files::random_bytes;
use turnway_tests::real::identity::{Key, guarded};
use turnway_tests::real::node::Node;
use turnway_tests::real::web::Web;

/// A picture of 64 by 48 pixels.
const PNG: &[u8] =
    b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0@\0\0\x000\x01\x03\0\0\0\x9b\x85\xee\\\0\0\0\x03PLTE\x1f_\xbf\xd6\xfd6\x11\
                     \0\0\0\x0eIDATx\xdac`\x18\x05C\x09\0\0\x01\xb0\0\x01\x8c8__\0\0\0\0IEND\xaeB`\x82";

/// Returns a picture of this many bytes; decoders ignore those after its end.
pub(crate) fn picture(number: u64, count: usize) -> Bytes {
    [PNG, &random_bytes(number, count - PNG.len())].concat().into()
}

/// An agent that answers what the test says.
pub(crate) struct Puppet {
    pub(crate) agents: Agents,
    invocations: mpsc::UnboundedReceiver<(Invocation, oneshot::Sender<String>)>,
}

impl Puppet {
    pub(crate) async fn start() -> Self {
        let (told, invocations) = mpsc::unbounded_channel();
        let agents = Agents::start(move |invocation| {
            let (say, said) = oneshot::channel::<String>();
            let _ = told.send((invocation, say));
            Reply::speak(|stream| async move {
                stream.delta(&said.await.unwrap_or_default()).await?;
                stream.done().await
            })
        });
        Self { agents: agents.await, invocations }
    }

    /// Waits for an invocation; the answer is what is sent.
    pub(crate) async fn asked(&mut self) -> (Invocation, oneshot::Sender<String>) {
        tokio::time::timeout(turnway_tests::real::PATIENCE, self.invocations.recv())
            .await
            .expect("an invocation in time")
            .expect("the agent runs")
    }
}

/// Keeps what becomes an object URL, those that are revoked, and downloads: the policy lets no script read an object URL.
const WATCH: &str = "
    window.made = new Map();
    window.revoked = new Set();
    window.saved = [];
    const create = URL.createObjectURL;
    const revoke = URL.revokeObjectURL;
    const click = HTMLAnchorElement.prototype.click;
    URL.createObjectURL = (blob) => { const url = create.call(URL, blob); window.made.set(url, blob); return url; };
    URL.revokeObjectURL = (url) => { window.revoked.add(url); revoke.call(URL, url); };
    HTMLAnchorElement.prototype.click = function () {
        if (this.download === '') return click.call(this);
        window.saved.push([this.download, this.href, window.made.get(this.href).type]);
    };";

impl ChatPage {
    /// Opens the page in a tab that keeps its object URLs.
    async fn open_watched(browser: &Browser, node: &Node) -> Self {
        let mut tab = browser.tab(DESKTOP).await;
        tab.before_each_page(WATCH).await;
        Self::load_in(tab, node.http).await
    }

    /// Waits until an element is a decoded picture; returns the SHA-256 of the bytes of its object URL.
    async fn hash_of_picture(&mut self, selector: &str) -> String {
        let element = format!("document.querySelector({})", json!(selector));
        let url = self.until(&format!("{element}?.naturalWidth == 64 && {element}.src")).await;
        self.hash_of_url(&url).await
    }

    async fn hash_of_url(&mut self, url: &Value) -> String {
        assert!(url.as_str().is_some_and(|url| url.starts_with("blob:")), "{url}");
        let hash = format!(
            "window.made.get({url}).arrayBuffer()
                .then((bytes) => crypto.subtle.digest('SHA-256', bytes))
                .then((hash) => [...new Uint8Array(hash)].map((byte) => byte.toString(16).padStart(2, '0')).join(''))"
        );
        self.value(&hash).await.as_str().expect("a text").to_owned()
    }
}

/// Returns the SHA-256 of a file's bytes, which names its blob.
fn hash_in(path: &str) -> &str {
    path.rsplit('/').next().expect("a path")
}

/// Sends a picture to an agent, which reads it with the token of its run and answers with another one.
///
/// Covers: PR-24, PR-27, MP-T10.
#[tokio::test]
async fn picture_reaches_the_agent_and_another_comes_back() {
    let mut puppet = Puppet::start().await;
    let dir = TempDir::new().expect("a directory");
    let node = guarded(&dir, &["--demo", "--agent", &puppet.agents.flag("ada"), "--default-agent", "ada"]).await;
    let key = Key::make(&node, &["--user", "ann"]).await;
    let browser = Browser::start(dir.path()).await;
    let mut page = ChatPage::open_watched(&browser, &node).await;
    page.until("document.querySelector('dialog[open] input[name=key]')").await;
    page.write("dialog input", &key.text).await;
    page.press("Enter").await;
    page.connected().await;
    let sent = picture(1, 5 * 1024 * 1024);
    page.attach(&[&written(&dir, "cat.png", &sent)]).await;
    page.uploaded(1).await;
    page.send("what is this").await;
    let (invocation, answer) = puppet.asked().await;
    let agent = Web::new(node.http, None).bearer(&invocation.token);
    let session = page.session().await;
    let messages = agent.json(&format!("/v1/sessions/{session}/messages")).await;
    let content = &messages["messages"][0]["content"];
    let sent_path = content[1]["image_url"]["url"].as_str().expect("a path").to_owned();
    assert_eq!(content[0]["text"], "what is this");
    let read = agent.download(&sent_path).await;
    assert!(read.status == 200 && read.bytes == sent, "{} of {}", read.status, read.bytes.len());
    let ann = Web::new(node.http, None).key(&key);
    let path = ann.must_upload(&session, "image/png", &picture(2, 300_000)).await;
    let notes = ann.must_upload(&session, "text/html", &Bytes::from_static(b"<script>")).await;
    answer.send(format!("A cat: ![another cat]({path}) and [notes.html]({notes})")).expect("the agent waits");
    page.answers(1).await;
    let announced = "document.querySelector('[role=status].unseen').textContent";
    page.until(&format!("{announced} == 'ada answered: A cat: another cat and notes.html'")).await;
    for is_reloaded in [false, true] {
        if is_reloaded {
            page.reload().await;
        }
        assert_eq!(page.hash_of_picture(".markdown .picture img").await, hash_in(&path), "reloaded: {is_reloaded}");
        assert_eq!(page.hash_of_picture(".input .picture img").await, hash_in(&sent_path), "reloaded: {is_reloaded}");
    }
    assert_eq!(page.value("document.querySelector('.markdown img').alt").await, "another cat");
    check_dialog(&mut page, hash_in(&path)).await;
    page.until("document.querySelector('.markdown .download').textContent == 'notes.html 8 B'").await;
    page.click(".markdown .download").await;
    let saved = page.until("window.saved.length == 1 && window.saved[0]").await;
    // Never a page of the gateway's origin.
    assert_eq!((&saved[0], &saved[2]), (&json!("notes.html"), &json!("application/octet-stream")));
    assert_eq!(page.hash_of_url(&saved[1]).await, hash_in(&notes));
    // The key is in no address.
    let addresses = page.value("performance.getEntriesByType('resource').map((entry) => entry.name).join()").await;
    let addresses = addresses.as_str().expect("a text");
    assert!(addresses.contains(&path) && !addresses.contains(&key.text), "{addresses}");
    // A picture makes the log longer once it is there; the view follows its end.
    page.appear(Screen { height: 320, ..DESKTOP }).await;
    page.reload().await;
    page.hash_of_picture(".markdown .picture img").await;
    page.until("[...document.querySelectorAll('.picture img')].every((img) => img.complete)").await;
    assert_eq!(page.value(FOLLOWED_WITHIN_A_SECOND).await, json!(true));
    assert_eq!(page.complaints().await, [""; 0]);
}

/// An expression that tells whether the log is at its end at one of the next frames. The next message from the node scrolls
/// it in any case.
const FOLLOWED_WITHIN_A_SECOND: &str = "new Promise((resolve) => {
    const log = document.querySelector('.log');
    const look = (frames) => {
        const isAtEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 2;
        if (isAtEnd || frames === 0) resolve(isAtEnd);
        else requestAnimationFrame(() => look(frames - 1));
    };
    look(60);
})";

/// Opens the picture of the answer in large, and closes it by the keyboard.
async fn check_dialog(page: &mut ChatPage, hash: &str) {
    page.value("document.querySelector('.markdown .picture').focus()").await;
    page.press("Enter").await;
    assert_eq!(page.hash_of_picture("dialog[open] img").await, hash);
    assert_eq!(page.value("document.querySelector('dialog img').alt").await, "another cat");
    // The focus stays within the dialog, and returns to the picture.
    for _ in 0..4 {
        page.press("Tab").await;
        let is_inside = "document.activeElement === document.body || !!document.activeElement.closest('dialog')";
        assert_eq!(page.value(is_inside).await, json!(true));
    }
    page.press("Escape").await;
    page.until("!document.querySelector('dialog') && document.activeElement.className == 'picture'").await;
}

/// Shows nothing that is no picture, of another session, of another place, or gone.
///
/// Covers: PR-24, S-06.
#[tokio::test]
async fn only_pictures_of_the_session_are_shown() {
    let mut puppet = Puppet::start().await;
    let dir = TempDir::new().expect("a directory");
    let flag = puppet.agents.flag("ada");
    let node = Node::start(dir.path(), &["--demo", "--agent", &flag, "--default-agent", "ada"]).await;
    let browser = Browser::start(dir.path()).await;
    let mut page = ChatPage::open_watched(&browser, &node).await;
    page.connected().await;
    page.send("show").await;
    let (_, answer) = puppet.asked().await;
    let web = Web::new(node.http, None);
    let session = page.session().await;
    let good = web.must_upload(&session, "image/png", &picture(1, 100)).await;
    let broken = web.must_upload(&session, "image/png", &random_bytes(2, 100)).await;
    let svg = Bytes::from_static(b"<svg xmlns='http://www.w3.org/2000/svg'/>");
    let svg = web.must_upload(&session, "image/svg+xml", &svg).await;
    let gone = web.must_upload(&session, "image/png", &picture(3, 100)).await;
    assert_eq!(web.ask("DELETE", &gone, &[], "").await.status, 204);
    let foreign = good.replace(&session, "another");
    let text = format!(
        "![good](http://{}{good}) ![broken]({broken}) ![svg]({svg}) ![gone]({gone}) ![foreign]({foreign}) \
         ![query]({good}?x=1) ![evil](https://evil.example/p.png) ![port](http://127.0.0.1:1{good})",
        node.http
    );
    answer.send(text).expect("the agent waits");
    page.answers(1).await;
    let states = "[...document.querySelectorAll('[data-blob]')].map((blob) => blob.dataset.state).join()";
    page.until(&format!("{states} == 'picture,file,file,gone'")).await;
    assert_eq!(page.hash_of_picture(".markdown .picture img").await, hash_in(&good));
    let pictures = "[...document.querySelectorAll('img')].map((img) => img.alt).join()";
    assert_eq!(page.value(pictures).await, "good");
    page.shows(&format!("![foreign]({foreign}) ![query]({good}?x=1)")).await;
    let links = page.value("[...document.querySelectorAll('.markdown a')].map((a) => a.textContent).join()").await;
    assert_eq!(links, "evil,port");
    page.shows("[gone is no longer stored at the gateway.]").await;
    assert_eq!(page.complaints().await, [""; 0]);
}

/// Reads a picture again on demand, and by itself after the loss of a node.
///
/// Covers: PR-24, ST-2.
#[tokio::test]
async fn picture_that_could_not_be_read_is_read_again() {
    let dir = TempDir::new().expect("a directory");
    let mut node = Node::start(dir.path(), &["--demo"]).await;
    let browser = Browser::start(dir.path()).await;
    let mut page = ChatPage::open_watched(&browser, &node).await;
    page.connected().await;
    let session = page.session().await;
    let path = Web::new(node.http, None).must_upload(&session, "image/png", &picture(1, 100)).await;
    page.call("Network.enable", json!({})).await;
    let failed = "document.querySelector('.markdown [data-state=failed]')";
    for (n, repair) in ["button", "node"].into_iter().enumerate() {
        page.call("Network.setBlockedURLs", json!({"urls": [format!("*{path}")]})).await;
        page.load_again().await;
        page.connected().await;
        if n == 0 {
            page.send(&format!("![cat]({path})")).await;
        }
        page.until(failed).await;
        page.shows("There was no answer.").await;
        page.call("Network.setBlockedURLs", json!({"urls": []})).await;
        if repair == "button" {
            page.click(".markdown [data-state=failed] button").await;
        } else {
            node.kill().await;
            node.restart().await;
        }
        assert_eq!(page.hash_of_picture(".markdown .picture img").await, hash_in(&path), "{repair}");
    }
}

/// Most pictures that the page holds.
const HELD_MAX: usize = 64;

/// Covers: PR-24.
#[tokio::test]
async fn page_holds_a_limited_number_of_pictures() {
    let mut puppet = Puppet::start().await;
    let dir = TempDir::new().expect("a directory");
    let flag = puppet.agents.flag("ada");
    let node = Node::start(dir.path(), &["--demo", "--agent", &flag, "--default-agent", "ada"]).await;
    let browser = Browser::start(dir.path()).await;
    let mut page = ChatPage::open_watched(&browser, &node).await;
    page.connected().await;
    page.send("show").await;
    let (_, answer) = puppet.asked().await;
    let web = Web::new(node.http, None);
    let session = page.session().await;
    let mut text = String::new();
    for n in 0..HELD_MAX as u64 + 6 {
        let path = web.must_upload(&session, "image/png", &picture(n, 100)).await;
        text += &format!("![p{n}]({path})");
    }
    answer.send(text).expect("the agent waits");
    page.answers(1).await;
    let made = HELD_MAX + 6;
    page.until(&format!("window.made.size == {made} && window.revoked.size == 6")).await;
    page.until("document.querySelectorAll('[data-state=dropped]').length == 6").await;
    // One that was given up is shown again when asked for, in place of another one.
    page.click("[data-state=dropped] button").await;
    page.until(&format!("window.made.size == {made} + 1 && window.revoked.size == 7")).await;
    page.until("document.querySelectorAll('[data-state=dropped]').length == 6").await;
    assert_eq!(page.complaints().await, [""; 0]);
}
