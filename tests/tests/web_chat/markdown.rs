//! Markdown in answers: what is rendered, and that a hostile text stays text.
use crate::chat_page::ChatPage;
use serde_json::{Value, json};
use tempfile::TempDir;
use turnway_tests::real::devtools::Browser;
use turnway_tests::real::node::Node;

/// Texts that try to become a script, a style, a picture or a link that runs something.
const HOSTILE: [&str; 12] = [
    "<script>window.ran = 1</script>",
    "<img src=x onerror=\"window.ran = 1\">",
    "<svg onload=\"window.ran = 1\"><style>*{display:none}</style></svg>",
    "[link](javascript:window.ran=1)",
    "[link](JaVaScRiPt:window.ran=1) [data](data:text/html,<script>window.ran=1</script>)",
    "[link](java\tscript:window.ran=1) [vb](vbscript:x) [file](file:///etc/passwd)",
    "![picture](https://evil.example/pixel.png)",
    "<https://evil.example/\" onclick=\"window.ran=1>",
    "[a](https://ok.example/\"onmouseover=\"window.ran=1)",
    "```html\n<script>window.ran = 1</script>\n```",
    "| <b>a</b> | b |\n|---|---|\n| <iframe srcdoc=\"<script>parent.ran=1</script>\"> | c |",
    "&lt;script&gt; &#60;img&#62; \u{202e}reversed",
];

/// Covers: MP-A3.
#[tokio::test]
async fn hostile_markdown_is_shown_as_text() {
    let dir = TempDir::new().expect("a directory");
    let node = Node::start(dir.path(), &["--demo"]).await;
    let browser = Browser::start(dir.path()).await;
    let mut page = ChatPage::open(&browser, node.http).await;
    for (n, text) in HOSTILE.iter().enumerate() {
        page.send_lines(text).await;
        page.answers(n + 1).await;
    }
    page.until(&format!("document.querySelectorAll('[data-phase=ended] .markdown').length == {}", HOSTILE.len())).await;
    let foreign = "[...document.querySelectorAll('.log *')].map((one) => one.localName)
        .filter((name) => ['script', 'img', 'svg', 'style', 'iframe', 'object', 'b', 'form'].includes(name))";
    assert_eq!(page.value(foreign).await, json!([]));
    let handlers = "[...document.querySelectorAll('.log *')]
        .flatMap((one) => one.getAttributeNames()).filter((name) => name.startsWith('on') || name === 'style')";
    assert_eq!(page.value(handlers).await, json!([]));
    let links = "[...document.querySelectorAll('.log a')].map((a) => [a.protocol, a.rel, a.target])";
    let links = page.value(links).await;
    let safe = json!(["https:", "noopener noreferrer nofollow", "_blank"]);
    assert!(links.as_array().expect("a list").iter().all(|link| *link == safe), "{links}");
    assert_eq!(page.value("window.ran ?? null").await, Value::Null);
    page.shows("<script>window.ran = 1</script>").await;
    page.shows("[link](javascript:window.ran=1)").await;
    assert_eq!(page.complaints().await, [""; 0]);
}

#[tokio::test]
async fn markdown_of_answers_becomes_elements() {
    let dir = TempDir::new().expect("a directory");
    let node = Node::start(dir.path(), &["--demo"]).await;
    let browser = Browser::start(dir.path()).await;
    let mut page = ChatPage::open(&browser, node.http).await;
    let text = "# Title\n\nsome **bold**, *slanted* and `code` at https://a.example/b_c_d.\n\n- one\n  - inner\n- two\n\n3. three\n\n\
                > quoted\n\n~~~\n**raw**\n~~~\n\n| a | b |\n|---|---|\n| 1 | [x](http://b.example) |\n\nsnake_case_name 2 * 3 * 4";
    page.send_lines(text).await;
    page.answers(1).await;
    let html = page.value("document.querySelector('.markdown').innerHTML").await;
    let html = html.as_str().expect("a text");
    for part in [
        "<h3>Title</h3>",
        "some <strong>bold</strong>, <em>slanted</em> and <code>code</code> at <a href=\"https://a.example/b_c_d\"",
        "<ul><li><p>one</p><ul><li>inner</li></ul></li><li>two</li></ul>",
        "<ol start=\"3\"><li>three</li></ol>",
        "<blockquote>quoted</blockquote>",
        "<code>**raw**</code>",
        "<th scope=\"col\">a</th>",
        "<p>snake_case_name 2 * 3 * 4</p>",
    ] {
        assert!(html.contains(part), "{part} is not in {html}");
    }
}

impl ChatPage {
    /// Sends a text of several lines.
    async fn send_lines(&mut self, text: &str) {
        self.write("#message", text).await;
        self.click("#send").await;
    }
}
