//! Serves the web chat under `/chat/`: the files in `gateway/chat/dist`, which are embedded in the binary. The files are
//! public, so that no credential is needed; the page presents a key on its own connection. Called by `http::router`.
use crate::http::HttpResult;
use crate::http::problem::HttpProblem;
use crate::response::{self, Body};
use aws_lc_rs::digest::{SHA256, digest};
use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, Response, StatusCode, Uri, header};
use std::fmt::Write as _;
use std::sync::LazyLock;
use turnway_core::protocol::refusal::Code;

/// The page, in which names of assets are still without their digests.
const PAGE: &str = include_str!("../../chat/dist/index.html");

/// The assets that the page names as `assets/STEM.EXTENSION`.
const ASSETS: [AssetSource; 3] = [
    AssetSource {
        stem: "chat",
        extension: "js",
        kind: "text/javascript; charset=utf-8",
        content: include_bytes!("../../chat/dist/chat.js"),
    },
    AssetSource {
        stem: "chat",
        extension: "css",
        kind: "text/css; charset=utf-8",
        content: include_bytes!("../../chat/dist/chat.css"),
    },
    AssetSource {
        stem: "icon",
        extension: "svg",
        kind: "image/svg+xml",
        content: include_bytes!("../../chat/dist/icon.svg"),
    },
];

/// Headers of each answer. The policy lets the page load and reach nothing but its own origin, and run no script but its
/// own file, also if a text of an agent became HTML. Pictures of a session are read with the credential in a header, and
/// shown from memory (`blob:`).
const HEADERS: [(HeaderName, HeaderValue); 5] = [
    (
        header::CONTENT_SECURITY_POLICY,
        HeaderValue::from_static(
            "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; \
             connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'; \
             require-trusted-types-for 'script'; trusted-types 'none'",
        ),
    ),
    (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
    (HeaderName::from_static("cross-origin-opener-policy"), HeaderValue::from_static("same-origin")),
    (HeaderName::from_static("cross-origin-resource-policy"), HeaderValue::from_static("same-origin")),
];

/// A browser asks for the page each time, because its assets change with the node's release.
const PAGE_CACHING: HeaderValue = HeaderValue::from_static("no-cache");
/// An asset's name has its digest: the content behind a name never changes.
const ASSET_CACHING: HeaderValue = HeaderValue::from_static("public, max-age=31536000, immutable");
/// Bytes of the digest in a name. A name must differ between releases; nobody has to trust it.
const DIGEST_BYTES: usize = 8;

/// An asset as it was built.
struct AssetSource {
    stem: &'static str,
    extension: &'static str,
    kind: &'static str,
    content: &'static [u8],
}

/// The files of the web chat as they are served.
struct WebChatFiles {
    page: Bytes,
    /// Each asset with its name.
    assets: [(String, &'static AssetSource); ASSETS.len()],
}

static FILES: LazyLock<WebChatFiles> = LazyLock::new(WebChatFiles::new);

/// Answers a request for a path that is no part of the API.
pub(super) async fn serve(method: Method, uri: Uri) -> HttpResult {
    let response = match uri.path() {
        "/chat" => redirect(),
        "/chat/" => file("text/html; charset=utf-8", FILES.page.clone(), PAGE_CACHING),
        path => path.strip_prefix("/chat/assets/").and_then(asset).ok_or_else(not_found)?,
    };
    let is_read = method == Method::GET || method == Method::HEAD;
    if is_read { Ok(response) } else { Err(HttpProblem::allow_only("GET, HEAD")) }
}

/// Leads to the page: its addresses are relative to `/chat/`, so that a proxy may put a path in front.
fn redirect() -> Response<Body> {
    let mut response = response::empty(StatusCode::PERMANENT_REDIRECT);
    response.headers_mut().insert(header::LOCATION, HeaderValue::from_static("chat/"));
    response
}

fn asset(name: &str) -> Option<Response<Body>> {
    let (_, source) = FILES.assets.iter().find(|(known, _)| known == name)?;
    Some(file(source.kind, Bytes::from_static(source.content), ASSET_CACHING))
}

fn not_found() -> HttpProblem {
    HttpProblem::new(Code::NotFound, "no such resource")
}

fn file(kind: &'static str, content: Bytes, caching: HeaderValue) -> Response<Body> {
    let mut response = response::build(StatusCode::OK, kind, content);
    let headers = response.headers_mut();
    headers.extend(HEADERS);
    headers.insert(header::CACHE_CONTROL, caching);
    response
}

// === impl WebChatFiles ===

impl WebChatFiles {
    fn new() -> Self {
        let assets = ASSETS.each_ref().map(|source| (source.served_name(), source));
        let page = assets.iter().fold(PAGE.to_owned(), |page, (name, source)| {
            page.replace(&format!("assets/{}.{}", source.stem, source.extension), &format!("assets/{name}"))
        });
        Self { page: page.into(), assets }
    }
}

// === impl AssetSource ===

impl AssetSource {
    /// Returns the name with the digest of the content.
    fn served_name(&self) -> String {
        let mut name = format!("{}-", self.stem);
        for byte in digest(&SHA256, self.content).as_ref().iter().take(DIGEST_BYTES) {
            let _ = write!(name, "{byte:02x}");
        }
        name + "." + self.extension
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_names_each_asset_by_its_digest() {
        let page = std::str::from_utf8(&FILES.page).expect("text");
        for (name, source) in &FILES.assets {
            assert_eq!(page.matches(&format!("\"assets/{name}\"")).count(), 1, "{name}");
            assert_eq!(name.len(), source.stem.len() + 1 + 2 * DIGEST_BYTES + 1 + source.extension.len());
        }
        assert_eq!(page.matches("assets/").count(), FILES.assets.len());
    }

    /// Compares the page's table of error codes in words with the codes of the protocol.
    #[test]
    fn each_code_has_words_in_the_page() {
        let table = include_str!("../../chat/src/codes.ts");
        let named = table.lines().filter_map(|line| line.strip_prefix("  ")?.split_once(": \""));
        let mut named: Vec<&str> = named.map(|(code, _)| code).collect();
        let mut codes: Vec<&str> = Code::ALL.iter().map(|code| code.as_str()).collect();
        named.sort_unstable();
        codes.sort_unstable();
        assert_eq!(named, codes);
    }
}
