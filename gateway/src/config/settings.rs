//! The table of settings. A new setting needs a variant of [`SettingKey`] at the same position.
use super::key::{DefaultValue, Setting, SettingKey, ValueKind};

/// The table in the order of a file: settings without a section come first.
pub const SETTINGS: [Setting; 56] = [
    Setting {
        key: SettingKey::DefaultAgent,
        name: "default_agent",
        kind: ValueKind::Text,
        form: "ID",
        flag: Some("--default-agent"),
        default: DefaultValue::Computed { how: "the first --agent, else the first of the file", example: "helper" },
        doc: "Agent for messages that address none: the id of an agent.",
    },
    Setting {
        key: SettingKey::Demo,
        name: "demo",
        kind: ValueKind::Switch,
        form: "BOOL",
        flag: Some("--demo"),
        default: DefaultValue::Fixed("false"),
        doc: "Add the agents `echo`, `counter` and `assistant`, as members of every new session that is opened without \
              members, and print how to talk to them. `assistant` is answered by a model that this node serves itself, by rules.",
    },
    Setting {
        key: SettingKey::Log,
        name: "log",
        kind: ValueKind::Text,
        form: "auto|pretty|json",
        flag: Some("--log"),
        default: DefaultValue::Fixed("auto"),
        doc: "Format of logs on stderr; `auto` is `pretty` on a terminal and `json` elsewhere. The content of \
              messages is never logged.",
    },
    Setting {
        key: SettingKey::ListenHttp,
        name: "listen.http",
        kind: ValueKind::Text,
        form: "ADDR",
        flag: Some("--listen"),
        default: DefaultValue::Fixed("127.0.0.1:8080"),
        doc: "Where clients connect, by HTTP and WebSocket. Port 0 takes a free one; the ready line names it.",
    },
    Setting {
        key: SettingKey::ListenQuic,
        name: "listen.quic",
        kind: ValueKind::Text,
        form: "ADDR|off",
        flag: Some("--quic"),
        default: DefaultValue::Fixed("127.0.0.1:8443"),
        doc: "Where clients connect by QUIC: a port of UDP, or `off`. Port 0 takes a free one; the ready line names it. \
              Without `tls.cert` it shows a certificate that it makes itself, as `turnway dev-cert` would: with an \
              embedded store in the directory `quic` beside its files, else a new one at every start.",
    },
    Setting {
        key: SettingKey::ListenWebtransport,
        name: "listen.webtransport",
        kind: ValueKind::Switch,
        form: "BOOL",
        flag: None,
        default: DefaultValue::Fixed("true"),
        doc: "Whether web pages may connect by WebTransport, which is HTTP/3 on the port of `listen.quic`; the same names \
              and pages are welcome there as by WebSocket.",
    },
    Setting {
        key: SettingKey::ListenQuicConnections,
        name: "listen.quic_connections",
        kind: ValueKind::Text,
        form: "N",
        flag: Some("--quic-connections"),
        default: DefaultValue::Fixed("18000"),
        doc: "Connections of clients by QUIC at a time; who comes beyond them is refused. They need no files, which is \
              what bounds WebSockets, but some 31 KB of memory each.",
    },
    Setting {
        key: SettingKey::ListenAdmin,
        name: "listen.admin",
        kind: ValueKind::Text,
        form: "ADDR",
        flag: Some("--admin"),
        default: DefaultValue::Fixed("127.0.0.1:8081"),
        doc: "Address of the operators' listener: health, metrics, drain.",
    },
    Setting {
        key: SettingKey::ListenHealth,
        name: "listen.health",
        kind: ValueKind::Text,
        form: "ADDR",
        flag: Some("--health"),
        default: DefaultValue::Computed { how: "none; `listen.admin` has the same pages", example: "0.0.0.0:8082" },
        doc: "Where load balancers, kubelets and scrapers of other machines ask for `/livez` and `/readyz` (`GET` only), on \
              any address. Nobody is asked who they are; the pages name reasons from a closed list, and no address or name.",
    },
    Setting {
        key: SettingKey::ListenHealthMetrics,
        name: "listen.health_metrics",
        kind: ValueKind::Switch,
        form: "BOOL",
        flag: None,
        default: DefaultValue::Fixed("false"),
        doc: "Whether `listen.health` has `/metrics`, too. No metric names a tenant or a user.",
    },
    Setting {
        key: SettingKey::ListenHosts,
        name: "listen.hosts",
        kind: ValueKind::Text,
        form: "NAME,…|*",
        flag: Some("--hosts"),
        default: DefaultValue::Computed {
            how: "this machine's own names, on a loopback address",
            example: "gw.example.com",
        },
        doc: "Allowed host names of this node (`Host`): names or addresses with commas between them, each with a \
              port or for any port; or `*` if a proxy in front has checked the name. Needed if `listen.http` is \
              not a loopback address.",
    },
    Setting {
        key: SettingKey::ListenOrigins,
        name: "listen.origins",
        kind: ValueKind::Text,
        form: "ORIGIN,…",
        flag: Some("--origins"),
        default: DefaultValue::Computed {
            how: "this machine's own pages, on a loopback address",
            example: "https://app.example.com",
        },
        doc: "Allowed origins of web pages, with commas between them, exactly as browsers write them. Programs that \
              are no browsers send none and need none.",
    },
    Setting {
        key: SettingKey::ListenProxies,
        name: "listen.proxies",
        kind: ValueKind::Text,
        form: "NETWORK,…",
        flag: Some("--proxies"),
        default: DefaultValue::Computed { how: "nobody", example: "10.0.0.0/8" },
        doc: "Proxies in front of this node that send the client's address by the PROXY protocol (version 1 or 2): \
              addresses or networks with commas between them. Their connections must begin with it; what others \
              say of it is not read, and neither are headers such as `X-Forwarded-For`. What comes from them by QUIC, which has no such protocol, is not counted by address.",
    },
    Setting {
        key: SettingKey::ListenPerAddress,
        name: "listen.per_address",
        kind: ValueKind::Text,
        form: "N|off",
        flag: Some("--per-address"),
        default: DefaultValue::Computed { how: "100, and any number from this machine", example: "100" },
        doc: "Connections of clients from one address at a time (of IPv6: from one /64; four times as many from \
              one /56, sixteen times from one /48); over it they are answered 429 and closed. Where something in front speaks no PROXY protocol all of its connections are from \
              one address: switch it off there.",
    },
    Setting {
        key: SettingKey::TlsCert,
        name: "tls.cert",
        kind: ValueKind::Text,
        form: "FILE",
        flag: Some("--tls-cert"),
        default: DefaultValue::Computed { how: "no TLS", example: "/etc/turnway/cert.pem" },
        doc: "The certificate that clients are shown, in PEM, followed by those that vouch for it. With it \
              `listen.http` speaks TLS and nothing else: `https://` and `wss://`. It is read again at SIGHUP, \
              and within five seconds when it has changed.",
    },
    Setting {
        key: SettingKey::TlsKey,
        name: "tls.key",
        kind: ValueKind::Text,
        form: "FILE",
        flag: Some("--tls-key"),
        default: DefaultValue::Computed { how: "none, as for `tls.cert`", example: "/etc/turnway/key.pem" },
        doc: "The key of `tls.cert`, in PEM and not encrypted. It is read again together with it.",
    },
    Setting {
        key: SettingKey::StoreUrl,
        name: "store.url",
        kind: ValueKind::Text,
        form: "URL",
        flag: Some("--store"),
        default: DefaultValue::Fixed("embedded:./turnway-data"),
        doc: "Store of the facts: `embedded:DIR`, a directory of this machine; a Redis that several nodes share, \
              `redis://USER:PASSWORD@HOST:PORT/DB`, `rediss://…` with TLS, or \
              `redis+sentinel://USER:PASSWORD@HOST:PORT,HOST:PORT/NAME?db=N`; or `memory:`, which ends with the \
              process.",
    },
    Setting {
        key: SettingKey::StoreDurability,
        name: "store.durability",
        kind: ValueKind::Text,
        form: "mem|os|fsync|fsync+replica",
        flag: Some("--durability"),
        default: DefaultValue::Computed { how: "fsync; mem with memory:", example: "fsync" },
        doc: "What an acknowledgement survives: `mem` nothing, `os` the death of the process, `fsync` the loss \
              of power, `fsync+replica` (Redis only) the loss of the disk. A Redis that is not set to give it is \
              refused.",
    },
    Setting {
        key: SettingKey::StoreDeployer,
        name: "store.deployer",
        kind: ValueKind::Text,
        form: "USER:PASSWORD",
        flag: None,
        default: DefaultValue::Computed { how: "who `store.url` names", example: "deployer:secret" },
        doc: "Who may load functions into Redis and read its settings, percent-encoded as in a URL, where the \
              user of `store.url` may not.",
    },
    Setting {
        key: SettingKey::StoreAttest,
        name: "store.attest",
        kind: ValueKind::Text,
        form: "os|fsync|fsync+replica",
        flag: None,
        default: DefaultValue::Computed { how: "what the server's settings show", example: "fsync" },
        doc: "What a Redis keeps that does not show its settings (`CONFIG`), as managed services do not: the operator's \
              word for it. Without it such a server is used at the level that can be shown, which is told.",
    },
    Setting {
        key: SettingKey::StoreWait,
        name: "store.wait",
        kind: ValueKind::Text,
        form: "WAIT",
        flag: None,
        default: DefaultValue::Fixed("60s"),
        doc: "How long a start waits for a Redis that is away, loads its data, or has no room for the functions, before it \
              leaves with 69: whoever supervises it starts it again.",
    },
    Setting {
        key: SettingKey::StorePasswordFile,
        name: "store.password_file",
        kind: ValueKind::Text,
        form: "FILE",
        flag: None,
        default: DefaultValue::Computed { how: "the password of `store.url`", example: "/etc/turnway/redis-password" },
        doc: "A file with the password of the user of `store.url`, which then names none. It is read at each connection, so \
              also after a refused login: a change needs no signal.",
    },
    Setting {
        key: SettingKey::StoreCa,
        name: "store.ca",
        kind: ValueKind::Text,
        form: "FILE",
        flag: None,
        default: DefaultValue::Computed { how: "the system's certificates", example: "/etc/turnway/redis-ca.pem" },
        doc: "Certificates that vouch for a Redis by `rediss://…` and its Sentinels, in PEM, in place of the system's.",
    },
    Setting {
        key: SettingKey::StoreClientCert,
        name: "store.client_cert",
        kind: ValueKind::Text,
        form: "FILE",
        flag: None,
        default: DefaultValue::Computed { how: "none", example: "/etc/turnway/redis-cert.pem" },
        doc: "The certificate that this node shows a Redis by `rediss://…` and its Sentinels, in PEM, followed by those that \
              vouch for it. It is read at each connection, as are `store.ca` and `store.client_key`.",
    },
    Setting {
        key: SettingKey::StoreClientKey,
        name: "store.client_key",
        kind: ValueKind::Text,
        form: "FILE",
        flag: None,
        default: DefaultValue::Computed {
            how: "none, as for `store.client_cert`",
            example: "/etc/turnway/redis-key.pem",
        },
        doc: "The key of `store.client_cert`, in PEM and not encrypted.",
    },
    Setting {
        key: SettingKey::StoreRetention,
        name: "store.retention",
        kind: ValueKind::Text,
        form: "keep|facts=N",
        flag: Some("--retention"),
        default: DefaultValue::Fixed("keep"),
        doc: "How much history is kept: everything, for ever, or at least the last N facts of each session and \
              never less than its open turns. Whoever resumes from before that is told `reset`, `trimmed`.",
    },
    Setting {
        key: SettingKey::StoreMaxAge,
        name: "store.max_age",
        kind: ValueKind::Text,
        form: "WAIT|off",
        flag: None,
        default: DefaultValue::Fixed("off"),
        doc: "How long a session is kept after its last fact, such as `720h`: then it is deleted with everything in it, \
              as by `DELETE /v1/sessions/{session_id}`, open or closed. None is deleted while a turn of it runs or waits. \
              Each node looks through all sessions by its own setting; give all nodes of a fleet the same.",
    },
    Setting {
        key: SettingKey::StoreCache,
        name: "store.cache",
        kind: ValueKind::Size,
        form: "SIZE",
        flag: None,
        default: DefaultValue::Fixed("2MiB"),
        doc: "Memory for pages of an embedded store's file.",
    },
    Setting {
        key: SettingKey::StoreReserve,
        name: "store.reserve",
        kind: ValueKind::Size,
        form: "SIZE",
        flag: None,
        default: DefaultValue::Fixed("64MiB"),
        doc: "Inputs are refused (`store_unavailable`) while the disk of an embedded store has less room than \
              this, so that turns under way can still be recorded.",
    },
    Setting {
        key: SettingKey::StoreSkew,
        name: "store.skew",
        kind: ValueKind::Text,
        form: "DURATION|off",
        flag: None,
        default: DefaultValue::Fixed("60s"),
        doc: "A node whose system's clock differs from the store's by more than this, for 30 s or since its start, is \
              not ready (`clock`). It serves all the same, by the store's clock; but certificates of agents are held \
              against the system's. `off`: never.",
    },
    Setting {
        key: SettingKey::BlobsMax,
        name: "blobs.max",
        kind: ValueKind::Size,
        form: "SIZE",
        flag: None,
        default: DefaultValue::Fixed("16MiB"),
        doc: "The largest file that may be uploaded into a session, at most 16MiB; 0B takes none. Files count in `quota.user` \
              and `quota.tenant`, and a session has at most 256 of them, of 256 MiB in all. Without \
              `blobs.url` an embedded store keeps them in the directory `blobs` beside its file, Redis in its memory.",
    },
    Setting {
        key: SettingKey::BlobsTypes,
        name: "blobs.types",
        kind: ValueKind::List,
        form: "TYPE/SUBTYPE[|TYPE/*…]",
        flag: None,
        default: DefaultValue::Fixed("*/*"),
        doc: "The media types of files that may be uploaded, as their uploaders name them.",
    },
    Setting {
        key: SettingKey::BlobsUrl,
        name: "blobs.url",
        kind: ValueKind::Text,
        form: "URL",
        flag: None,
        default: DefaultValue::Computed {
            how: "the store has the bytes",
            example: "https://s3.example.com/bucket/turnway",
        },
        doc: "Where the bytes of files lie, if not in the store: a bucket of an S3-compatible store, addressed by path, and \
              the prefix of the objects in it: `https://HOST/BUCKET/PREFIX`, or `http://` in a private network. All nodes \
              of a fleet must have the same, and nothing else may use the prefix: objects that no session names are \
              deleted. An upload then needs a `content-length`.",
    },
    Setting {
        key: SettingKey::BlobsRegion,
        name: "blobs.region",
        kind: ValueKind::Text,
        form: "REGION",
        flag: None,
        default: DefaultValue::Fixed("us-east-1"),
        doc: "The region that requests to `blobs.url` are signed for.",
    },
    Setting {
        key: SettingKey::BlobsCredentials,
        name: "blobs.credentials",
        kind: ValueKind::Text,
        form: "FILE",
        flag: None,
        default: DefaultValue::Computed {
            how: "the variables AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN",
            example: "/etc/turnway/s3-credentials",
        },
        doc: "A file with the credentials for `blobs.url`: lines `AWS_ACCESS_KEY_ID=…`, `AWS_SECRET_ACCESS_KEY=…` and, for \
              temporary ones, `AWS_SESSION_TOKEN=…`. It is read at each request, so a change needs no signal.",
    },
    Setting {
        key: SettingKey::AuthMode,
        name: "auth.mode",
        kind: ValueKind::Text,
        form: "none|keys|jwt|keys+jwt",
        flag: Some("--auth"),
        default: DefaultValue::Fixed("none"),
        doc: "Who may connect: whoever has an API key of `turnway key new` (`keys`), a token of an identity \
              provider (`jwt`), either (`keys+jwt`), or everybody who reaches the node (`none`), which therefore \
              serves this machine only: `listen.http` must be a loopback address.",
    },
    Setting {
        key: SettingKey::AuthPepper,
        name: "auth.pepper",
        kind: ValueKind::Text,
        form: "FILE",
        flag: Some("--auth-pepper"),
        default: DefaultValue::Computed { how: "none; keys cannot be made or used", example: "/etc/turnway/pepper" },
        doc: "The secret that keys are hashed with before they are stored: a file with 32 bytes or more of text \
              (`openssl rand -hex 32`), the same for all nodes of a fleet, and not in the store. Without it no key \
              is good any more.",
    },
    Setting {
        key: SettingKey::AuthLockout,
        name: "auth.lockout",
        kind: ValueKind::Switch,
        form: "BOOL",
        flag: None,
        default: DefaultValue::Fixed("true"),
        doc: "Answer 429 to everything that comes from an address for five minutes after ten bad credentials within one \
              (of IPv6: from one /64). Where many come from one address, as behind a proxy of another machine that \
              speaks no PROXY protocol, switch it off: one of them could lock out all.",
    },
    Setting {
        key: SettingKey::AuthJwks,
        name: "auth.jwks",
        kind: ValueKind::Text,
        form: "URL|FILE",
        flag: Some("--auth-jwks"),
        default: DefaultValue::Computed { how: "none; needed for jwt", example: "https://id.example.com/jwks.json" },
        doc: "The public keys of the provider whose tokens are good (JWKS): `https://…`, fetched every five minutes \
              and when a token names a key that is not known, or a file.",
    },
    Setting {
        key: SettingKey::AuthIssuer,
        name: "auth.issuer",
        kind: ValueKind::Text,
        form: "TEXT",
        flag: Some("--auth-issuer"),
        default: DefaultValue::Computed { how: "none; needed for jwt", example: "https://id.example.com/" },
        doc: "Required `iss` of tokens, compared exactly.",
    },
    Setting {
        key: SettingKey::AuthAudience,
        name: "auth.audience",
        kind: ValueKind::Text,
        form: "TEXT",
        flag: Some("--auth-audience"),
        default: DefaultValue::Computed { how: "none; needed for jwt", example: "turnway" },
        doc: "Required `aud` of tokens, alone or among several.",
    },
    Setting {
        key: SettingKey::AuthAlgorithms,
        name: "auth.algorithms",
        kind: ValueKind::Text,
        form: "NAME,…",
        flag: None,
        default: DefaultValue::Fixed("RS256,ES256,EdDSA"),
        doc: "Accepted signature algorithms of tokens, with commas between the names.",
    },
    Setting {
        key: SettingKey::RateConnection,
        name: "rate.connection",
        kind: ValueKind::Text,
        form: "N/s|N/m|off",
        flag: None,
        default: DefaultValue::Computed { how: "100/s with authentication, else off", example: "100/s" },
        doc: "How often one WebSocket connection may ask for something; two seconds' worth may come at once. What \
              stops work, or subscribes, or is only a ping is counted apart from the rest, at the same rate.",
    },
    Setting {
        key: SettingKey::RateKey,
        name: "rate.key",
        kind: ValueKind::Text,
        form: "N/s|N/m|off",
        flag: None,
        default: DefaultValue::Computed { how: "1000/s with authentication, else off", example: "1000/s" },
        doc: "The same for all clients with one credential, at all nodes of a fleet together.",
    },
    Setting {
        key: SettingKey::RateTenant,
        name: "rate.tenant",
        kind: ValueKind::Text,
        form: "N/s|N/m|off",
        flag: None,
        default: DefaultValue::Fixed("off"),
        doc: "The same for all clients of one tenant, at all nodes of a fleet together.",
    },
    Setting {
        key: SettingKey::ToolsServedBy,
        name: "tools.served_by",
        kind: ValueKind::List,
        form: "USER[|USER…]",
        flag: Some("--tools-served-by"),
        default: DefaultValue::Computed { how: "nobody", example: "runner|acme/runner" },
        doc: "As whom somebody must have come to run tools for the sessions of every tenant: `USER` of the default \
              tenant or `TENANT/USER`. A key made with `--serves tools:NAME` needs no such entry, and runs tools for \
              its own tenant only. With `auth.mode = \"none\"` anybody may.",
    },
    Setting {
        key: SettingKey::ShareTenant,
        name: "share.tenant",
        kind: ValueKind::Text,
        form: "FRACTION",
        flag: None,
        default: DefaultValue::Fixed("0.75"),
        doc: "The part of this node that one tenant may hold at a time: of attempts at agents, sessions, connections, \
              subscriptions, and content of inputs. The rest is kept for tenants that hold less. A turn that finds no \
              place waits; other requests are refused with `over_share`. Without authentication there are no shares.",
    },
    Setting {
        key: SettingKey::ShareUser,
        name: "share.user",
        kind: ValueKind::Text,
        form: "FRACTION",
        flag: None,
        default: DefaultValue::Fixed("0.75"),
        doc: "The part of its tenant's share that one user may hold at a time. What a service key does with `act_as` \
              counts for the users it acts for.",
    },
    Setting {
        key: SettingKey::LimitAttempts,
        name: "limit.attempts",
        kind: ValueKind::Text,
        form: "N",
        flag: None,
        default: DefaultValue::Fixed("8192"),
        doc: "Turns that agents outside this process answer at a time; what is more waits. Fewer where the process may \
              open too few files; the node logs the number at its start.",
    },
    Setting {
        key: SettingKey::LimitSessions,
        name: "limit.sessions",
        kind: ValueKind::Text,
        form: "N",
        flag: None,
        default: DefaultValue::Fixed("32768"),
        doc: "Sessions with turns that run or wait, which this node owns at a time.",
    },
    Setting {
        key: SettingKey::LimitSubscriptions,
        name: "limit.subscriptions",
        kind: ValueKind::Text,
        form: "N",
        flag: None,
        default: DefaultValue::Fixed("200000"),
        doc: "Sessions that all connections of this node are subscribed to, counted once for each connection.",
    },
    Setting {
        key: SettingKey::LlmRecord,
        name: "llm.record",
        kind: ValueKind::Text,
        form: "before|after",
        flag: Some("--llm-record"),
        default: DefaultValue::Fixed("before"),
        doc: "When a call of a model by a run is recorded in the log of its session: `before` an upstream is asked, so that no \
              call lacks a record; or `after`, meanwhile, so that no call waits for the store.",
    },
    Setting {
        key: SettingKey::QuotaTenant,
        name: "quota.tenant",
        kind: ValueKind::Text,
        form: "FRACTION|SIZE|off",
        flag: None,
        default: DefaultValue::Fixed("0.5"),
        doc: "Bytes that the sessions of one tenant may take: a part of what the store may hold (an embedded one: what \
              is stored and the space that is free above `store.reserve`; a Redis: its `maxmemory`, if it has one; \
              `memory:`: 2 GiB), or a size. Over it inputs are refused with `quota_exceeded`; turns under way are still \
              recorded. Without authentication only a size holds.",
    },
    Setting {
        key: SettingKey::QuotaUser,
        name: "quota.user",
        kind: ValueKind::Text,
        form: "FRACTION|SIZE|off",
        flag: None,
        default: DefaultValue::Fixed("0.25"),
        doc: "The same for one user: bytes of the sessions that are its own.",
    },
    Setting {
        key: SettingKey::NodeName,
        name: "node.name",
        kind: ValueKind::Text,
        form: "NAME",
        flag: Some("--node-name"),
        default: DefaultValue::Computed { how: "the machine's name", example: "edge-1" },
        doc: "A label for people; a node's id is one start of the process.",
    },
    Setting {
        key: SettingKey::NodeUrl,
        name: "node.url",
        kind: ValueKind::Text,
        form: "http://HOST[:PORT]|https://HOST[:PORT]",
        flag: None,
        default: DefaultValue::Computed {
            how: "the address of this node's listener",
            example: "https://gateway.example",
        },
        doc: "Where agents reach the gateway: a load balancer, or this node. Messages to agents name files by URLs that begin \
              with it. A listener of all addresses is named by the loopback address.",
    },
];
