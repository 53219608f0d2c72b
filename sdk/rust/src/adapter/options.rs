//! The options of an adapter: the account, the gateway's addresses, the credential, and the file with the offset.
use crate::adapter::machine::AdapterSetup;
use crate::adapter::offset_file::OffsetFile;
use crate::adapter::place::{AccountPlace, is_platform_id};
use crate::backoff::Backoff;
use crate::error::ClientError;
use crate::hello::HelloTemplate;
use crate::limits;
use crate::options::Options;
use crate::transport::GatewayAddress;
use crate::trust::TrustedRoots;
use std::path::PathBuf;

/// The options of an adapter.
#[derive(Clone, Debug)]
pub struct AdapterOptions {
    options: Options,
    /// Further addresses of the gateway.
    more_urls: Vec<String>,
    place: AccountPlace,
    instance_id: Option<String>,
    platform_bot_id: Option<String>,
    pub(crate) offset_file: Option<OffsetFile>,
    orders_at_a_time: usize,
}

// === impl AdapterOptions ===

impl AdapterOptions {
    /// Creates options with all other values at their defaults. The channel is the platform's name,
    /// `[a-z0-9_.-]{1,64}`; the account is the gateway's there, `[A-Za-z0-9_.-]{1,64}`. The URL is as in
    /// [`Options::url`].
    pub fn new(url: impl Into<String>, channel: impl Into<String>, account_id: impl Into<String>) -> Self {
        Self {
            options: Options::new(url),
            more_urls: Vec::new(),
            place: AccountPlace { channel: channel.into(), account_id: account_id.into() },
            instance_id: None,
            platform_bot_id: None,
            offset_file: None,
            orders_at_a_time: limits::ORDERS_AT_A_TIME,
        }
    }

    /// Adds an address of the gateway; after each loss the next address is tried.
    #[must_use]
    pub fn or_url(mut self, url: impl Into<String>) -> Self {
        self.more_urls.push(url.into());
        self
    }

    /// Sets the API key, made with `turnway key new --serves adapter:CHANNEL/ACCOUNT`.
    #[must_use]
    pub fn api_key(mut self, key: impl Into<String>) -> Self {
        self.options.api_key = Some(key.into());
        self
    }

    /// Trusts only these PEM certificates.
    #[must_use]
    pub fn ca(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.options.ca = Some(pem.into());
        self
    }

    /// Sets the delays between reconnects.
    #[must_use]
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.options.backoff = backoff;
        self
    }

    /// Names this adapter's place. After a restart under the same name the adapter is active at once. The default is
    /// the account and the name of this machine, so that two adapters of one account on one machine need different
    /// names.
    #[must_use]
    pub fn instance_id(mut self, id: impl Into<String>) -> Self {
        self.instance_id = Some(id.into());
        self
    }

    /// Sets the platform's id of the bot's login: one account at a time acts as it.
    #[must_use]
    pub fn platform_bot_id(mut self, id: impl Into<String>) -> Self {
        self.platform_bot_id = Some(id.into());
        self
    }

    /// Reads the platform's updates ([`crate::adapter::Platform::updates`]), and keeps their offset in this file.
    #[must_use]
    pub fn offset_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.offset_file = Some(OffsetFile::new(path));
        self
    }

    /// Sets the number of orders that are performed at a time, from 1 to [`limits::ORDERS_MAX`].
    #[must_use]
    pub fn orders_at_a_time(mut self, count: usize) -> Self {
        self.orders_at_a_time = count.clamp(1, limits::ORDERS_MAX);
        self
    }

    /// Returns the addresses, in the order in which they are tried.
    pub(crate) fn addresses(&self) -> Result<Vec<GatewayAddress>, ClientError> {
        let trust = TrustedRoots::from_options(&self.options)?;
        let address = |url: &String| {
            let endpoint = Options { url: url.clone(), ..self.options.clone() }.endpoint()?;
            Ok(GatewayAddress { endpoint, trust: trust.clone() })
        };
        std::iter::once(&self.options.url).chain(&self.more_urls).map(address).collect()
    }

    /// Checks the options, and returns what the state machine needs of them.
    pub(crate) fn setup(&self) -> Result<AdapterSetup, ClientError> {
        self.place.check()?;
        let default = || machine_name().map(|name| format!("{}@{name}", self.place.account_id));
        let instance_id = self.instance_id.clone().or_else(default);
        let is_bad = |id: &Option<String>| id.as_deref().is_some_and(|id| !is_platform_id(id));
        // Adapters on two machines under one name would take the lease from each other.
        let Some(instance_id) = instance_id.filter(|id| is_platform_id(id)) else {
            return Err(ClientError::BadName { what: "instance id; this machine has no name, so choose one" });
        };
        if is_bad(&self.platform_bot_id) {
            return Err(ClientError::BadName { what: "bot id" });
        }
        let mut hello = HelloTemplate::from_options(&self.options).message();
        hello["role"] = "adapter".into();
        hello["channel"] = self.place.channel.clone().into();
        hello["account_id"] = self.place.account_id.clone().into();
        hello["instance_id"] = instance_id.into();
        if let Some(bot) = &self.platform_bot_id {
            hello["platform_bot_id"] = bot.clone().into();
        }
        Ok(AdapterSetup {
            hello,
            account: self.place.clone(),
            backoff: self.options.backoff,
            addresses: 1 + self.more_urls.len(),
            orders_at_a_time: self.orders_at_a_time,
            has_feed: self.offset_file.is_some(),
        })
    }
}

/// Returns the name of this machine.
fn machine_name() -> Option<String> {
    let of_file = |path| std::fs::read_to_string(path).ok();
    let of_variable = |name| std::env::var(name).ok();
    let found = of_file("/proc/sys/kernel/hostname")
        .or_else(|| of_file("/etc/hostname"))
        .or_else(|| of_variable("HOSTNAME"))
        .or_else(|| of_variable("COMPUTERNAME"))?;
    Some(found.trim().to_owned()).filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(options: &AdapterOptions) -> ClientError {
        match options.setup() {
            Ok(_) => panic!("an error is expected for {options:?}"),
            Err(error) => error,
        }
    }

    #[test]
    fn hello_names_the_account_and_a_stable_instance() {
        let options = AdapterOptions::new("ws://h", "rooms", "main").api_key("twk_x").platform_bot_id("b1");
        let hello = options.setup().expect("valid").hello;
        assert_eq!(
            (&hello["role"], &hello["channel"], &hello["account_id"]),
            (&"adapter".into(), &"rooms".into(), &"main".into())
        );
        assert_eq!((&hello["api_key"], &hello["platform_bot_id"]), (&"twk_x".into(), &"b1".into()));
        let instance = hello["instance_id"].as_str().expect("a name");
        assert!(instance.starts_with("main@"), "{instance}");
        assert_eq!(options.setup().expect("valid").hello, hello, "the same after a restart");
        assert_eq!(options.instance_id("a").setup().expect("valid").hello["instance_id"], "a");
    }

    #[test]
    fn invalid_names_and_addresses_are_refused() {
        let bad = |what| ClientError::BadName { what };
        assert_eq!(refusal(&AdapterOptions::new("ws://h", "Rooms", "main")), bad("channel"));
        assert_eq!(refusal(&AdapterOptions::new("ws://h", "rooms", "a/b")), bad("account"));
        let options = AdapterOptions::new("ws://h", "rooms", "main");
        assert_eq!(refusal(&options.clone().platform_bot_id("")), bad("bot id"));
        assert!(matches!(refusal(&options.clone().instance_id("a\nb")), ClientError::BadName { .. }));
        assert!(options.clone().or_url("ftp://h").addresses().is_err());
        assert!(options.clone().ca("no certificate").addresses().is_err());
        assert_eq!(options.or_url("quic://h").addresses().expect("valid").len(), 2);
    }

    #[test]
    fn key_of_an_adapter_is_not_printed() {
        let options = AdapterOptions::new("ws://h", "rooms", "main").api_key("canary-7f3a");
        assert!(!format!("{options:?}").contains("canary"));
    }
}
