//! A tab that shows the web chat, with the actions of a person and what a person sees.
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};
use turnway_tests::real::devtools::{Browser, DESKTOP, Tab};

/// A tab that shows the web chat of one node.
pub(crate) struct ChatPage {
    tab: Tab,
    url: String,
}

impl ChatPage {
    /// Opens the page in a new tab and waits until it is connected.
    pub(crate) async fn open(browser: &Browser, node: SocketAddr) -> Self {
        let mut page = Self::load_in(browser.tab(DESKTOP).await, node).await;
        page.connected().await;
        page
    }

    /// Opens the page in this tab.
    pub(crate) async fn load_in(mut tab: Tab, node: SocketAddr) -> Self {
        let url = format!("http://{node}/chat/");
        tab.load(&url).await;
        Self { tab, url }
    }

    /// Loads the page again in the same tab, and waits until it shows its session.
    pub(crate) async fn reload(&mut self) {
        self.load_again().await;
        self.connected().await;
    }

    /// Loads the page again in the same tab.
    pub(crate) async fn load_again(&mut self) {
        self.tab.load(&self.url).await;
    }

    /// Waits until a prompt above the message field contains a text.
    pub(crate) async fn shows_prompt(&mut self, text: &str) {
        self.until(&format!("document.querySelector('.prompt').textContent.includes({})", json!(text))).await;
    }

    /// Waits until the page is connected, and shows its session.
    pub(crate) async fn connected(&mut self) {
        self.until("document.querySelector('.page[data-connection=connected] .agent select')").await;
    }

    /// Writes a message and sends it with the key Enter.
    pub(crate) async fn send(&mut self, text: &str) {
        self.write("#message", text).await;
        self.press("Enter").await;
    }

    /// Waits until this many turns have ended; returns the text of each answer, a blank one for a turn without its own.
    pub(crate) async fn answers(&mut self, ended: usize) -> Vec<String> {
        self.until(&format!("document.querySelectorAll('[data-phase=ended]').length >= {ended}")).await;
        let texts = "[...document.querySelectorAll('[data-run]')]
            .map((turn) => turn.querySelector('.markdown')?.textContent ?? '')";
        strings(&self.value(texts).await)
    }

    /// Waits until an answer contains a text.
    pub(crate) async fn shows(&mut self, text: &str) {
        let has = format!("document.querySelector('.log').textContent.includes({})", json!(text));
        self.until(&has).await;
    }

    /// Returns the id of the shown session.
    pub(crate) async fn session(&mut self) -> String {
        let id = self.value("sessionStorage.getItem('turnway.chat.v1.current')").await;
        id.as_str().expect("a session").to_owned()
    }

    pub(crate) async fn draft(&mut self) -> Value {
        self.value("document.getElementById('message').value").await
    }
}

impl Deref for ChatPage {
    type Target = Tab;
    fn deref(&self) -> &Tab {
        &self.tab
    }
}

impl DerefMut for ChatPage {
    fn deref_mut(&mut self) -> &mut Tab {
        &mut self.tab
    }
}

/// Returns the texts of a list.
pub(crate) fn strings(list: &Value) -> Vec<String> {
    let texts = list.as_array().expect("a list").iter();
    texts.map(|text| text.as_str().expect("a text").to_owned()).collect()
}
