//! A headless browser, and a test page that reports what happened in it.
use super::PATIENCE;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode, header};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use std::convert::Infallible;
use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::process::{Child, Command};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// A foreign host name that resolves to this machine, as in a DNS rebinding attack.
pub const ELSEWHERE: &str = "elsewhere.example";
/// A host name that browsers treat as this machine, with the rights of an HTTPS page; a node does not accept it.
pub const APART: &str = "apart.localhost";

/// Returns the binary of `CHROMIUM_BIN`, else the one on the path, else the one that `./test` unpacks.
pub fn binary() -> PathBuf {
    if let Some(named) = std::env::var_os("CHROMIUM_BIN") {
        return named.into();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let unpacked = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/chromium");
    let mut places = std::env::split_paths(&path).chain([unpacked]);
    let found = places.find_map(|place| {
        let names = ["chromium-headless-shell", "chromium"].map(|name| place.join(name));
        names.into_iter().find(|file| file.is_file())
    });
    found.expect("there is no Chromium: `./test` unpacks Debian's into target/chromium")
}

/// A page on a server of its own, which reports by `POST /report`.
#[derive(Debug)]
pub struct Page {
    pub at: SocketAddr,
    reports: mpsc::Receiver<Value>,
    server: JoinHandle<()>,
}

/// A browser that shows one page. Killed when dropped.
#[derive(Debug)]
pub struct Chromium {
    child: Child,
    log: PathBuf,
}

/// Returns the command that starts a browser without a window, with its profile under `dir`.
pub(super) fn command(dir: &Path) -> Command {
    let mut command = Command::new(binary());
    // Chromium's own sandbox needs rights that a container lacks; the page is trusted.
    command.args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]);
    command.args(["--no-first-run", "--disable-background-networking", "--remote-debugging-port=0"]);
    command.arg(format!(
        "--host-resolver-rules=MAP {ELSEWHERE} 127.0.0.1, MAP {APART} 127.0.0.1, MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
    ));
    command.arg(format!("--user-data-dir={}", dir.join("chromium").display()));
    command.env("NO_PROXY", "*").kill_on_drop(true).stdin(Stdio::null()).stdout(Stdio::null());
    command
}

// === impl Page ===

impl Page {
    /// Serves a file of `tests/javascript`.
    pub async fn serve(name: &str) -> Self {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("javascript").join(name);
        let html = Bytes::from(std::fs::read(file).expect("a page"));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let at = listener.local_addr().expect("bound");
        let (tell, reports) = mpsc::channel(4);
        let page = Arc::new((html, tell));
        let server = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let page = Arc::clone(&page);
                let service = service_fn(move |request| answer(request, Arc::clone(&page)));
                // A browser that closes the connection is no error here.
                tokio::spawn(async move {
                    drop(http1::Builder::new().serve_connection(TokioIo::new(stream), service).await)
                });
            }
        });
        Self { at, reports, server }
    }

    /// Returns the page's next report.
    pub async fn report(&mut self, of: &Chromium) -> Value {
        let report = tokio::time::timeout(PATIENCE, self.reports.recv()).await;
        report.unwrap_or_else(|_| panic!("the page tells nothing: {}", of.said())).expect("it is served")
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn answer(
    request: Request<Incoming>,
    page: Arc<(Bytes, mpsc::Sender<Value>)>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (html, tell) = &*page;
    let (status, body) = match (request.method(), request.uri().path()) {
        (&Method::GET, "/") => (StatusCode::OK, html.clone()),
        (&Method::POST, "/report") => {
            let body = request.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
            // The receiver may be gone.
            let _ = tell.try_send(serde_json::from_slice(&body).unwrap_or_default());
            (StatusCode::NO_CONTENT, Bytes::new())
        }
        (_, _) => (StatusCode::NOT_FOUND, Bytes::new()),
    };
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    let kind = header::HeaderValue::from_static("text/html; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    Ok(response)
}

// === impl Chromium ===

impl Chromium {
    /// Shows a page. Only this machine can be reached, also under the names [`ELSEWHERE`] and [`APART`].
    pub fn show(dir: &Path, url: &str) -> Self {
        let log = dir.join("chromium.log");
        let err = File::options().create(true).append(true).open(&log).expect("a log file");
        let child = command(dir).arg(url).stderr(err).spawn().expect("it starts");
        Self { child, log }
    }

    /// Returns the browser's log.
    fn said(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Ends the browser, which closes its connections.
    pub async fn quit(mut self) {
        self.child.kill().await.expect("it ends");
    }
}
