//! The files of the page: their headers, their size, the switch that serves them, and their build.
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use tokio::process::Command;
use turnway_tests::real::identity::guarded;
use turnway_tests::real::node::Node;
use turnway_tests::real::web::{Reply, Web};

/// Maximum bytes of the page with all its assets, before compression.
const BYTES_MAX: usize = 100_000;

/// Returns the folder of the page's sources.
fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../gateway/chat")
}

/// Returns the paths of the assets that the page names.
fn assets(page: &str) -> Vec<String> {
    page.split('"').filter(|part| part.starts_with("assets/")).map(|part| format!("/chat/{part}")).collect()
}

fn header<'a>(reply: &'a Reply, name: &str) -> &'a str {
    reply.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

/// Covers: S-09.
#[tokio::test]
async fn files_have_strict_headers_and_caching() {
    let dir = TempDir::new().expect("a directory");
    let node = Node::start(dir.path(), &["--demo"]).await;
    let web = Web::new(node.http, None);
    let page = web.get("/chat/").await;
    assert_eq!((page.status, header(&page, "content-type")), (200, "text/html; charset=utf-8"));
    assert_eq!(header(&page, "cache-control"), "no-cache");
    let assets = assets(&page.text);
    assert_eq!(assets.len(), 3, "{}", page.text);
    let mut bytes = page.text.len();
    let mut replies = vec![page];
    for path in &assets {
        let reply = web.get(path).await;
        assert_eq!((reply.status, header(&reply, "cache-control")), (200, "public, max-age=31536000, immutable"));
        bytes += reply.text.len();
        let head = web.ask("HEAD", path, &[], "").await;
        assert_eq!((head.status, head.text.as_str()), (200, ""));
        assert_eq!(header(&head, "content-length"), reply.text.len().to_string());
        replies.push(reply);
    }
    assert!(bytes <= BYTES_MAX, "the page has {bytes} bytes");
    for reply in &replies {
        let policy = header(reply, "content-security-policy");
        for part in [
            "default-src 'none'",
            "script-src 'self'",
            "style-src 'self'",
            "img-src 'self' blob:",
            "connect-src 'self'",
            "frame-ancestors 'none'",
            "base-uri 'none'",
            "form-action 'none'",
        ] {
            assert!(policy.split("; ").any(|known| known == part), "{part} is not in {policy}");
        }
        assert!(!policy.contains("unsafe"), "{policy}");
        assert_eq!(header(reply, "x-content-type-options"), "nosniff");
        assert_eq!(header(reply, "referrer-policy"), "no-referrer");
    }
}

#[tokio::test]
async fn other_paths_and_methods_are_refused() {
    let dir = TempDir::new().expect("a directory");
    let node = Node::start(dir.path(), &["--demo"]).await;
    let web = Web::new(node.http, None);
    let known = assets(&web.get("/chat/").await.text).remove(0);
    for path in ["/chat/index.html", "/chat/assets/", "/chat/assets/chat.js", "/chat/assets/%2e%2e/chat.js", "/chats"] {
        web.get(path).await.must_be(404, "not_found");
    }
    for path in ["/chat/", "/chat", known.as_str()] {
        for method in ["POST", "PUT", "DELETE", "OPTIONS"] {
            assert_eq!(web.ask(method, path, &[], "").await.status, 405, "{method} {path}");
        }
    }
    let moved = web.get("/chat").await;
    assert_eq!((moved.status, header(&moved, "location")), (308, "chat/"));
}

/// Serves the page by configuration, without a credential for the page itself, and not by default.
#[tokio::test]
async fn page_is_served_only_where_it_is_configured() {
    let dir = TempDir::new().expect("a directory");
    let node = Node::start(dir.path(), &["--agent", "a=builtin:echo"]).await;
    for path in ["/chat", "/chat/"] {
        Web::new(node.http, None).get(path).await.must_be(404, "not_found");
    }
    drop(node);
    let file = dir.path().join("chat.toml");
    std::fs::write(&file, "[channels.web]\n").expect("a file");
    let node = guarded(&dir, &["--config", file.to_str().expect("UTF-8"), "--agent", "a=builtin:echo"]).await;
    assert_eq!(Web::new(node.http, None).get("/chat/").await.status, 200);
}

/// Follows the first thing to try that a demo node prints.
#[tokio::test]
async fn demo_prints_the_address_of_the_page_first() {
    let dir = TempDir::new().expect("a directory");
    let mut node = Node::start(dir.path(), &["--demo"]).await;
    assert_eq!(node.line().await.as_deref(), Some(""));
    let line = node.line().await.expect("a line");
    let address = format!("http://{}/chat/", node.http);
    assert_eq!(line.split_whitespace().take(3).collect::<Vec<_>>(), ["Web", "chat", address.as_str()]);
    assert_eq!(Web::new(node.http, None).get("/chat/").await.status, 200);
}

/// Types and builds the sources with the pinned tools, which `./test` installs.
#[tokio::test]
async fn checked_in_bundle_equals_its_sources() {
    for args in [&["node_modules/typescript/bin/tsc", "--noEmit"][..], &["build.mjs", "--check"]] {
        let done = Command::new("node").args(args).current_dir(sources()).output().await.expect("Node runs");
        let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(done.status.success(), "{args:?}: {}{}", said(&done.stdout), said(&done.stderr));
    }
}
