//! A browser that a test drives by Chromium's DevTools protocol: its tabs, input as of a person, and waits for what a
//! page shows. A wait looks again after each change and each frame of the page, and ends with [`PATIENCE`].
use super::web::Web;
use super::{PATIENCE, chromium};
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::Child;
use tokio::task::JoinHandle;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;

/// A running browser. Killed when dropped.
#[derive(Debug)]
pub struct Browser {
    /// Kept alive: the process ends when it is dropped.
    _child: Child,
    /// Address of the DevTools.
    at: SocketAddr,
    /// Reads what the browser writes, so that its pipe never fills.
    log: JoinHandle<()>,
}

/// A tab of a browser.
#[derive(Debug)]
pub struct Tab {
    socket: WebSocketStream<TcpStream>,
    last_id: u64,
    /// Messages that answer no request: what happened in the page.
    events: Vec<Value>,
}

/// The appearance of a tab.
#[derive(Clone, Copy, Debug)]
pub struct Screen {
    pub width: u32,
    pub height: u32,
    pub is_dark: bool,
}

/// A screen of a desktop, in the light theme.
pub const DESKTOP: Screen = Screen { width: 1000, height: 700, is_dark: false };

// === impl Browser ===

impl Browser {
    /// Starts a browser with an empty profile under `dir`.
    pub async fn start(dir: &Path) -> Self {
        let mut child = chromium::command(dir).arg("about:blank").stderr(Stdio::piped()).spawn().expect("it starts");
        let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines();
        let address = async {
            loop {
                let line = lines.next_line().await.expect("readable").expect("it says where its DevTools are");
                if let Some(url) = line.strip_prefix("DevTools listening on ws://") {
                    return url.split('/').next().and_then(|at| at.parse().ok()).expect("an address");
                }
            }
        };
        let at = tokio::time::timeout(PATIENCE, address).await.expect("it starts in time");
        let log = tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        Self { _child: child, at, log }
    }

    /// Opens an empty tab. All tabs of a browser have one local storage.
    pub async fn tab(&self, screen: Screen) -> Tab {
        let made = Web::new(self.at, None).ask("PUT", "/json/new?about:blank", &[], "").await.json();
        let url = made["webSocketDebuggerUrl"].as_str().expect("an address");
        let stream = TcpStream::connect(self.at).await.expect("a listener");
        let (socket, _) = tokio_tungstenite::client_async(url, stream).await.expect("a connection");
        let mut tab = Tab { socket, last_id: 0, events: Vec::new() };
        for domain in ["Page", "Runtime", "Log"] {
            tab.call(&format!("{domain}.enable"), json!({})).await;
        }
        tab.appear(screen).await;
        tab
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        self.log.abort();
    }
}

// === impl Tab ===

impl Tab {
    /// Sends a command and returns its result.
    pub async fn call(&mut self, method: &str, params: Value) -> Value {
        let answer = tokio::time::timeout(PATIENCE, self.answer(method, params)).await;
        answer.unwrap_or_else(|_| panic!("{method} is not answered"))
    }

    async fn answer(&mut self, method: &str, params: Value) -> Value {
        self.last_id += 1;
        let id = self.last_id;
        let text = json!({"id": id, "method": method, "params": params}).to_string();
        self.socket.send(Message::text(text)).await.expect("the browser runs");
        loop {
            let mut message = self.next().await;
            if message["id"] == id {
                assert!(message["error"].is_null(), "{method}: {message}");
                return message["result"].take();
            }
            if message["method"].is_string() {
                self.events.push(message);
            }
        }
    }

    async fn next(&mut self) -> Value {
        loop {
            let frame = self.socket.next().await.expect("the browser runs").expect("a frame");
            if let Message::Text(text) = frame {
                return serde_json::from_str(&text).expect("JSON");
            }
        }
    }

    /// Changes the size and the theme.
    pub async fn appear(&mut self, Screen { width, height, is_dark }: Screen) {
        let size = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.call("Emulation.setDeviceMetricsOverride", size).await;
        let theme = json!({"name": "prefers-color-scheme", "value": if is_dark { "dark" } else { "light" }});
        self.call("Emulation.setEmulatedMedia", json!({"features": [theme]})).await;
    }

    /// Loads a page, and waits until it is loaded.
    pub async fn load(&mut self, url: &str) {
        self.events.retain(|event| event["method"] != "Page.loadEventFired");
        let begun = self.call("Page.navigate", json!({"url": url})).await;
        assert!(begun["errorText"].is_null(), "{url}: {begun}");
        let loaded = async {
            while !self.events.iter().any(|event| event["method"] == "Page.loadEventFired") {
                let event = self.next().await;
                self.events.push(event);
            }
        };
        tokio::time::timeout(PATIENCE, loaded).await.expect("it is loaded in time");
    }

    /// Runs a script before those of each page that is loaded from now on.
    pub async fn before_each_page(&mut self, script: &str) {
        self.call("Page.addScriptToEvaluateOnNewDocument", json!({"source": script})).await;
    }

    /// Returns the value of an expression, after the promise if it is one.
    pub async fn value(&mut self, expression: &str) -> Value {
        let params = json!({"expression": expression, "awaitPromise": true, "returnByValue": true});
        let mut answer = self.call("Runtime.evaluate", params).await;
        assert!(answer["exceptionDetails"].is_null(), "{expression}: {}", answer["exceptionDetails"]);
        answer["result"]["value"].take()
    }

    /// Waits until an expression is true, or not empty; returns its value. It is tried after each change of the document,
    /// and at each frame: focus and the values of fields change without the document, and a tab behind another has no
    /// frames.
    pub async fn until(&mut self, expression: &str) -> Value {
        let wait = format!(
            "new Promise((resolve) => {{
                const value = () => {{ try {{ return ({expression}) }} catch {{ return false }} }};
                const look = () => {{
                    const found = value();
                    if (found) {{ changes.disconnect(); resolve(found); }}
                    return Boolean(found);
                }};
                const changes = new MutationObserver(look);
                changes.observe(document, {{subtree: true, childList: true, characterData: true, attributes: true}});
                const frame = () => look() || requestAnimationFrame(frame);
                frame();
            }})"
        );
        let params = json!({"expression": wait, "awaitPromise": true, "returnByValue": true});
        match tokio::time::timeout(PATIENCE, self.answer("Runtime.evaluate", params)).await {
            Ok(mut answer) => answer["result"]["value"].take(),
            Err(_) => {
                let shown = self.value("document.body.innerText").await;
                panic!("never true: {expression}\nThe page shows: {shown}\nIt complains: {:?}", self.complaints().await)
            }
        }
    }

    /// Clicks an element.
    pub async fn click(&mut self, selector: &str) {
        let element = format!("document.querySelector({})", json!(selector));
        self.until(&format!("{element} && !{element}.disabled")).await;
        self.value(&format!("{element}.click()")).await;
    }

    /// Chooses the option of this value in a list.
    pub async fn choose(&mut self, selector: &str, value: &str) {
        let list = format!("document.querySelector({})", json!(selector));
        self.until(&format!(
            "[...{list}.options].some((option) => option.value == {}) && !{list}.disabled",
            json!(value)
        ))
        .await;
        // In one step: the page may render between two.
        let event = "new Event('change', {bubbles: true})";
        self.value(&format!("{list}.value = {}; {list}.dispatchEvent({event})", json!(value))).await;
    }

    /// Types a text into an element.
    pub async fn write(&mut self, selector: &str, text: &str) {
        self.value(&format!("document.querySelector({}).focus()", json!(selector))).await;
        self.call("Input.insertText", json!({"text": text})).await;
    }

    /// Presses and releases a key, such as `Enter`, `Tab` or `Escape`.
    pub async fn press(&mut self, key: &str) {
        let code = match key {
            "Enter" => 13,
            "Tab" => 9,
            "Escape" => 27,
            _ => panic!("no code for the key {key}"),
        };
        let mut params = json!({"type": "keyDown", "key": key, "code": key, "windowsVirtualKeyCode": code});
        if key == "Enter" {
            params["text"] = "\r".into();
        }
        self.call("Input.dispatchKeyEvent", params.clone()).await;
        params["type"] = "keyUp".into();
        self.call("Input.dispatchKeyEvent", params).await;
    }

    /// Returns errors of the page so far: exceptions, errors on the console, and violations of the content security
    /// policy.
    pub async fn complaints(&mut self) -> Vec<String> {
        // The answer comes after the events before it.
        self.value("0").await;
        let is_complaint = |event: &&Value| match event["method"].as_str() {
            Some("Runtime.exceptionThrown") => true,
            Some("Runtime.consoleAPICalled") => {
                ["error", "warning", "assert"].iter().any(|kind| event["params"]["type"] == *kind)
            }
            Some("Log.entryAdded") => event["params"]["entry"]["level"] == "error",
            Some(_) | None => false,
        };
        self.events.iter().filter(is_complaint).map(Value::to_string).collect()
    }
}
