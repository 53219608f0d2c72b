//! Tests of valid and invalid settings, each mistake with its place.
use super::super::{ConfigSources, EntryText, Flag, load};
use super::*;

fn sources(file: &str, env: &[(&str, &str)], flags: &[(Flag, &str)]) -> ConfigSources {
    ConfigSources {
        file: Some(("t.toml".into(), file.to_owned())),
        env: env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
        flags: flags.iter().map(|(flag, value)| (*flag, (*value).to_owned())).collect(),
    }
}

fn good(sources: &ConfigSources) -> Config {
    let loaded = load(sources);
    assert_eq!(loaded.mistakes, []);
    loaded.config
}

fn wrong(sources: &ConfigSources) -> Vec<String> {
    let mut mistakes = load(sources).mistakes;
    mistakes.sort();
    mistakes.iter().map(ToString::to_string).collect()
}

#[test]
fn default_configuration_is_a_local_node() {
    let config = good(&ConfigSources::default());
    assert_eq!(config.http, "127.0.0.1:8080".parse().expect("an address"));
    assert_eq!(config.quic, "127.0.0.1:8443".parse().ok());
    assert_eq!(config.store.durability(), "fsync");
    assert!(!config.demo);
}

#[test]
fn flags_override_environment_and_environment_the_file() {
    let file = "demo = true\nlog = \"json\"\n[listen]\nhttp = \"[::1]:1\"\nadmin = \"[::1]:1\"\n";
    let env = [("TURNWAY_LISTEN_HTTP", "localhost:2"), ("TURNWAY_LISTEN_ADMIN", "127.0.0.1:2")];
    let flags = [(Flag::Key(SettingKey::ListenAdmin), "127.0.0.1:3"), (Flag::Key(SettingKey::ListenQuic), "off")];
    let config = good(&sources(file, &env, &flags));
    assert_eq!((config.http.port(), config.admin.port()), (2, 3));
    assert!(config.demo && config.quic.is_none());
    assert_eq!(config.log, LogFormat::Json);
}

#[test]
fn every_configuration_error_is_reported_with_its_source() {
    let file = "colour = 1\ndemo = \"yes\"\n[listen]\nhttp = \"0.0.0.0:1\"\nhtpp = \"x\"\n[store]\nurl = \"redis://u:hunter2@h:x\"\n";
    let env = [("TURNWAY_LISTEN_HOST", "1"), ("TURNWAY_LOG", "loud"), ("TURNWAY_URL", "not ours")];
    let flags = [(Flag::Key(SettingKey::StoreDurability), "fsync+replica"), (Flag::Key(SettingKey::ListenQuic), "1")];
    let mistakes = wrong(&sources(file, &env, &flags));
    let starts = [
        "t.toml:1:1: colour: unknown key",
        "t.toml:2:8: demo: expected true or false, not a string",
        "t.toml:4:8: listen.http: 0.0.0.0:1 is not a loopback address",
        "t.toml:5:1: listen.htpp: unknown key; did you mean \"listen.http\"?",
        "t.toml:7:7: store.url: expected HOST or HOST:PORT",
        "environment TURNWAY_LISTEN_HOST: unknown setting; did you mean \"TURNWAY_LISTEN_HOSTS\"?",
        "environment TURNWAY_LOG: log: expected auto, pretty or json",
        "flag --durability: store.durability: an embedded store gives fsync at most, not fsync+replica",
        "flag --quic: listen.quic: expected ADDRESS:PORT",
    ];
    assert_eq!(mistakes.len(), starts.len(), "{mistakes:#?}");
    for (mistake, start) in mistakes.iter().zip(starts) {
        assert!(mistake.starts_with(start), "{mistake}\n{start}");
        assert!(!mistake.contains("hunter2"));
    }
}

#[test]
fn unknown_key_suggests_a_similar_one() {
    let file = "http = 1\nstore = \"x\"\nsilence = \"1s\"\n[lisen]\n[log]\n[node]\nnaem = 1\n[agents]\na = 1\n";
    let mistakes = wrong(&sources(file, &[], &[]));
    let expected = [
        "t.toml:1:1: http: unknown key; did you mean \"listen.http\"?",
        "t.toml:2:9: store: expected a section: [store]",
        "t.toml:3:1: silence: unknown key; \"silence\" belongs in [agents.ID]",
        "t.toml:4:2: lisen: unknown section; did you mean \"listen\"?",
        "t.toml:5:1: log: expected a string, not a table",
        "t.toml:7:1: node.naem: unknown key; did you mean \"node.name\"?",
        "t.toml:9:5: agents.a: expected a table [agents.a] with a url, not a number",
    ];
    assert_eq!(mistakes, expected);
}

#[test]
fn sizes_are_parsed_with_units() {
    let config = good(&sources("[store]\ncache = \"8MiB\"\nreserve = \"0B\"\n", &[], &[]));
    let StoreConfig::Embedded { cache_bytes, reserve_bytes, .. } = config.store else { panic!() };
    assert_eq!((cache_bytes, reserve_bytes), (8 << 20, 0));
    let mistakes = wrong(&sources("[store]\ncache = \"8KiB\"\nreserve = 5\n", &[("TURNWAY_STORE_RESERVE", "5")], &[]));
    let expected = [
        "t.toml:2:9: store.cache: expected at least 1.0 MiB",
        "t.toml:3:11: store.reserve: expected a string, not a number",
        "environment TURNWAY_STORE_RESERVE: store.reserve: expected a size such as 512B, 64KiB, 8MiB or 2GiB",
    ];
    assert_eq!(mistakes, expected);
}

#[test]
fn store_skew_is_a_duration_or_off() {
    assert_eq!(good(&sources("", &[], &[])).skew_max, Some(Duration::from_secs(60)));
    let skew = |text: &str| sources(&format!("[store]\nskew = {text:?}\n"), &[], &[]);
    assert_eq!(good(&skew("off")).skew_max, None);
    assert_eq!(good(&skew("2m")).skew_max, Some(Duration::from_secs(120)));
    for bad in ["", "0s", "500ms", "60", "on"] {
        let mistakes = wrong(&skew(bad));
        assert!(mistakes.len() == 1 && mistakes[0].starts_with("t.toml:2:8: store.skew: expected off"), "{mistakes:?}");
    }
}

#[test]
fn invalid_toml_is_reported_with_positions() {
    let mistakes = wrong(&sources("log = \n[listen\nhttp = \"x\"\n", &[], &[]));
    assert!(mistakes.iter().any(|mistake| mistake.starts_with("t.toml:1:")), "{mistakes:#?}");
    assert!(mistakes.iter().any(|mistake| mistake.starts_with("t.toml:2:")), "{mistakes:#?}");
}

#[test]
fn memory_store_offers_no_durability() {
    let memory = (Flag::Key(SettingKey::StoreUrl), "memory:");
    assert_eq!(good(&sources("", &[], &[memory])).store, StoreConfig::Memory);
    let mistakes = wrong(&sources("", &[], &[memory, (Flag::Key(SettingKey::StoreDurability), "fsync")]));
    assert_eq!(mistakes, ["flag --durability: store.durability: a store in memory gives mem, not fsync"]);
}

#[test]
fn redis_deployer_and_replica_settings_are_parsed() {
    let url = Flag::Key(SettingKey::StoreUrl);
    let level = Flag::Key(SettingKey::StoreDurability);
    let file = "[store]\ndeployer = \"d:p%3A\"\n";
    let config = good(&sources(file, &[], &[(url, "redis://u@h"), (level, "fsync+replica")]));
    let StoreConfig::Redis { durability, deployer: Some(login), .. } = config.store else { panic!() };
    assert_eq!(durability, Durability::FsyncReplica);
    assert_eq!(login.password.as_ref().map(|password| password.reveal()), Some("p:"));
    let mistakes = wrong(&sources(file, &[], &[(url, "embedded:d"), (level, "fsync+replica")]));
    let expected = [
        "t.toml:2:12: store.deployer: only valid with a Redis in store.url",
        "flag --durability: store.durability: an embedded store gives fsync at most, not fsync+replica: \
         it has no replica",
    ];
    assert_eq!(mistakes, expected);
}

/// Covers: PR-24.
#[test]
fn bucket_settings_require_an_address_without_credentials() {
    assert_eq!(good(&sources("", &[], &[])).blobs.place, None);
    let file = "[blobs]\nurl = \"https://s3.example.com/files/a\"\ncredentials = \"c\"\n";
    let place = good(&sources(file, &[], &[])).blobs.place.expect("a place");
    assert_eq!((&*place.region, place.credentials), ("us-east-1", Some("c".into())));
    assert_eq!(place.url.to_string(), "https://s3.example.com/files/a/");
    let alone = "[blobs]\nregion = \"eu-1\"\ncredentials = \"c\"\n";
    assert_eq!(wrong(&sources(alone, &[], &[])), ["t.toml:3:15: blobs.credentials: only valid with blobs.url"]);
    let mistakes = wrong(&sources("[blobs]\nurl = \"https://id:hidden@s3.example.com/files\"\n", &[], &[]));
    assert!(mistakes.len() == 1 && !mistakes[0].contains("hidden"), "{mistakes:?}");
}

#[test]
fn redis_files_require_tls_and_a_login_without_password() {
    let url = Flag::Key(SettingKey::StoreUrl);
    let file = "[store]\nattest = \"fsync\"\nwait = \"5s\"\npassword_file = \"p\"\nca = \"a\"\nclient_cert = \"c\"\n\
                client_key = \"k\"\n";
    let config = good(&sources(file, &[], &[(url, "rediss://u@h")]));
    let StoreConfig::Redis { url: redis, attest, wait, .. } = config.store else { panic!() };
    assert_eq!((attest, wait.as_secs()), (Some(Durability::Fsync), 5));
    assert_eq!(redis.login.password_file, Some("p".into()));
    let tls = redis.tls.expect("there is TLS");
    assert_eq!((tls.ca, tls.client), (Some("a".into()), Some(("c".into(), "k".into()))));
    let mistakes = wrong(&sources(file, &[], &[(url, "redis://u:p@h")]));
    assert_eq!(
        mistakes,
        [
            "t.toml:4:17: store.password_file: store.url names a password as well",
            "t.toml:5:6: store.ca: needs TLS: a store.url that begins with rediss",
            "t.toml:6:15: store.client_cert: needs TLS: a store.url that begins with rediss",
            "t.toml:7:14: store.client_key: needs TLS: a store.url that begins with rediss",
        ]
    );
    let half = "[store]\nclient_key = \"k\"\nattest = \"mem\"\n";
    let mistakes = wrong(&sources(half, &[], &[(url, "rediss://h")]));
    assert_eq!(
        mistakes,
        [
            "t.toml:2:14: store.client_key: needs store.client_cert as well",
            "t.toml:3:10: store.attest: expected os, fsync or fsync+replica",
        ]
    );
    let mistakes = wrong(&sources(file, &[], &[(url, "embedded:d")]));
    let needs_redis = |mistake: &String| mistake.ends_with("only valid with a Redis in store.url");
    assert!(mistakes.iter().all(needs_redis) && mistakes.len() == 5, "{mistakes:#?}");
}

#[test]
fn agents_are_read_from_file_environment_and_flags() {
    let file = "[agents.a]\nurl = \"http://h\"\ncancel = true\n";
    let env = [("TURNWAY_AGENTS_b", "http://h")];
    let loaded = load(&sources(file, &env, &[(Flag::Agent, "c=http://h")]));
    let [EntryText::Table { id, pairs, .. }, EntryText::Line { text, .. }, EntryText::Line { .. }] =
        loaded.agents.as_slice()
    else {
        panic!("{:?}", loaded.agents)
    };
    assert_eq!((id.as_str(), pairs.len(), text.as_str()), ("a", 2, "b=http://h"));
}

#[test]
fn certificate_requires_a_key() {
    let config = good(&sources("[tls]\ncert = \"c\"\n", &[("TURNWAY_TLS_KEY", "k")], &[]));
    let tls = config.tls.expect("both are there");
    assert_eq!((tls.cert.0, tls.key.0), ("c".into(), "k".into()));
    let mistakes = wrong(&sources("[tls]\nkey = \"k\"\n", &[], &[]));
    assert_eq!(mistakes, ["t.toml:2:7: tls.key: needs tls.cert as well"]);
    let mistakes =
        wrong(&sources("", &[], &[(Flag::Key(SettingKey::TlsCert), ""), (Flag::Key(SettingKey::TlsKey), "k")]));
    assert_eq!(
        mistakes,
        ["flag --tls-cert: tls.cert: expected a file's name", "flag --tls-key: tls.key: needs tls.cert as well"]
    );
}
