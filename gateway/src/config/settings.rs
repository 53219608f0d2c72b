//! The table of settings. A new setting needs a variant of [`Key`] at the same position.
use super::key::{Fallback, Key, Kind, Setting};

/// The table in the order of a file: settings without a section come first.
pub const SETTINGS: [Setting; 49] = [
    Setting {
        key: Key::DefaultAgent,
        name: "default_agent",
        kind: Kind::Text,
        form: "ID",
        flag: Some("--default-agent"),
        default: Fallback::Found { how: "the first --agent, else the first of the file", example: "helper" },
        doc: "Agent for messages that address none: the id of an agent.",
    },
    Setting {
        key: Key::Demo,
        name: "demo",
        kind: Kind::Switch,
        form: "BOOL",
        flag: Some("--demo"),
        default: Fallback::Fixed("false"),
        doc: "Add the agents `echo` and `counter`, as members of every new session that is opened without \
              members, and print how to talk to them.",
    },
    Setting {
        key: Key::Log,
        name: "log",
        kind: Kind::Text,
        form: "auto|pretty|json",
        flag: Some("--log"),
        default: Fallback::Fixed("auto"),
        doc: "Format of logs on stderr; `auto` is `pretty` on a terminal and `json` elsewhere. The content of \
              messages messages is never logged.",
    },
    Setting {
        key: Key::ListenHttp,
        name: "listen.http",
        kind: Kind::Text,
        form: "ADDR",
        flag: Some("--listen"),
        default: Fallback::Fixed("127.0.0.1:8080"),
        doc: "Where clients connect, by HTTP and WebSocket. Port 0 takes a free one; the ready line names it.",
    },
    Setting {
        key: Key::ListenQuic,
        name: "listen.quic",
        kind: Kind::Text,
        form: "ADDR|off",
        flag: Some("--quic"),
        default: Fallback::Fixed("127.0.0.1:8443"),
        doc: "Where clients connect by QUIC: a port of UDP, or `off`. Port 0 takes a free one; the ready line names it. \
              Without `tls.cert` it shows a certificate that it makes itself, as `turnway dev-cert` would: with an \
              embedded store in the directory `quic` beside its files, else a new one at every start.",
    },
    Setting {
        key: Key::ListenWebtransport,
        name: "listen.webtransport",
        kind: Kind::Switch,
        form: "BOOL",
        flag: None,
        default: Fallback::Fixed("true"),
        doc: "Whether web pages may connect by WebTransport, which is HTTP/3 on the port of `listen.quic`; the same names \
              and pages are welcome there as by WebSocket.",
    },
    Setting {
        key: Key::ListenQuicConnections,
        name: "listen.quic_connections",
        kind: Kind::Text,
        form: "N",
        flag: Some("--quic-connections"),
        default: Fallback::Fixed("18000"),
        doc: "Connections of clients by QUIC at a time; who comes beyond them is refused. They need no files, which is \
              what bounds WebSockets, but some 31 KB of memory each.",
    },
    Setting {
        key: Key::ListenAdmin,
        name: "listen.admin",
        kind: Kind::Text,
        form: "ADDR",
        flag: Some("--admin"),
        default: Fallback::Fixed("127.0.0.1:8081"),
        doc: "Address of the operators' listener: health, metrics, drain.",
    },
    Setting {
        key: Key::ListenHealth,
        name: "listen.health",
        kind: Kind::Text,
        form: "ADDR",
        flag: Some("--health"),
        default: Fallback::Found { how: "none; `listen.admin` has the same pages", example: "0.0.0.0:8082" },
        doc: "Where load balancers, kubelets and scrapers of other machines ask for `/livez` and `/readyz` (`GET` only), on \
              any address. Nobody is asked who they are; the pages name reasons from a closed list, and no address or name.",
    },
    Setting {
        key: Key::ListenHealthMetrics,
        name: "listen.health_metrics",
        kind: Kind::Switch,
        form: "BOOL",
        flag: None,
        default: Fallback::Fixed("false"),
        doc: "Whether `listen.health` has `/metrics`, too. No metric names a tenant or a user.",
    },
    Setting {
        key: Key::ListenHosts,
        name: "listen.hosts",
        kind: Kind::Text,
        form: "NAME,…|*",
        flag: Some("--hosts"),
        default: Fallback::Found {
            how: "this machine's own names, on a loopback address",
            example: "gw.example.com",
        },
        doc: "Allowed host names of this node (`Host`): names or addresses with commas between them, each \
              with a port or for any port; or `*` if a proxy in front has checked the name. Needed if `listen.http` is \
              not a loopback address.",
    },
    Setting {
        key: Key::ListenOrigins,
        name: "listen.origins",
        kind: Kind::Text,
        form: "ORIGIN,…",
        flag: Some("--origins"),
        default: Fallback::Found {
            how: "this machine's own pages, on a loopback address",
            example: "https://app.example.com",
        },
        doc: "Allowed origins of web pages: with commas between them, exactly as browsers write \
              them. Programs that are no browsers send none and need none.",
    },
    Setting {
        key: Key::ListenProxies,
        name: "listen.proxies",
        kind: Kind::Text,
        form: "NETWORK,…",
        flag: Some("--proxies"),
        default: Fallback::Found { how: "nobody", example: "10.0.0.0/8" },
        doc: "Proxies in front of this node that send the client's address by the PROXY protocol (version 1 or 2): \
              addresses or networks with commas between them. Their connections must begin with it; what others \
              say of it is not read, and neither are headers such as `X-Forwarded-For`. What comes from them by QUIC, which has no such protocol, is not counted by address.",
    },
    Setting {
        key: Key::ListenPerAddress,
        name: "listen.per_address",
        kind: Kind::Text,
        form: "N|off",
        flag: Some("--per-address"),
        default: Fallback::Found { how: "100, and any number from this machine", example: "100" },
        doc: "Connections of clients from one address at a time (of IPv6: from one /64; four times as many from \
              one /56, sixteen times from one /48); over it they are answered 429 and closed. Where something in front speaks no PROXY protocol all of its connections are from \
              one address: switch it off there.",
    },
    Setting {
        key: Key::TlsCert,
        name: "tls.cert",
        kind: Kind::Text,
        form: "FILE",
        flag: Some("--tls-cert"),
        default: Fallback::Found {
            how: "no TLS",
            example: "/etc/turnway/cert.pem",
        },
        doc: "The certificate that clients are shown, in PEM, followed by those that vouch for it. With it \
              `listen.http` speaks TLS and nothing else: `https://` and `wss://`. It is read again at SIGHUP, \
              and within five seconds when it has changed.",
    },
    Setting {
        key: Key::TlsKey,
        name: "tls.key",
        kind: Kind::Text,
        form: "FILE",
        flag: Some("--tls-key"),
        default: Fallback::Found { how: "none, as for `tls.cert`", example: "/etc/turnway/key.pem" },
        doc: "The key of `tls.cert`, in PEM and not encrypted. It is read again together with it.",
    },
    Setting {
        key: Key::StoreUrl,
        name: "store.url",
        kind: Kind::Text,
        form: "URL",
        flag: Some("--store"),
        default: Fallback::Fixed("embedded:./turnway-data"),
        doc: "Store of the facts: `embedded:DIR`, a directory of this machine; a Redis that several nodes share, \
              `redis://USER:PASSWORD@HOST:PORT/DB`, `rediss://…` with TLS, or \
              `redis+sentinel://USER:PASSWORD@HOST:PORT,HOST:PORT/NAME?db=N`; or `memory:`, which ends with the \
              process.",
    },
    Setting {
        key: Key::StoreDurability,
        name: "store.durability",
        kind: Kind::Text,
        form: "mem|os|fsync|fsync+replica",
        flag: Some("--durability"),
        default: Fallback::Found { how: "fsync; mem with memory:", example: "fsync" },
        doc: "What an acknowledgement survives: `mem` nothing, `os` the death of the process, `fsync` the loss \
              of power, `fsync+replica` (Redis only) the loss of the disk. A Redis that is not set to give it is \
              refused.",
    },
    Setting {
        key: Key::StoreDeployer,
        name: "store.deployer",
        kind: Kind::Text,
        form: "USER:PASSWORD",
        flag: None,
        default: Fallback::Found { how: "who `store.url` names", example: "deployer:secret" },
        doc: "Who may load functions into Redis and read its settings, percent-encoded as in a URL, where the \
              user of `store.url` may not.",
    },
    Setting {
        key: Key::StoreAttest,
        name: "store.attest",
        kind: Kind::Text,
        form: "os|fsync|fsync+replica",
        flag: None,
        default: Fallback::Found { how: "what the server's settings show", example: "fsync" },
        doc: "What a Redis keeps that does not show its settings (`CONFIG`), as managed services do not: the operator's \
              word for it. Without it such a server is used at the level that can be shown, which is told.",
    },
    Setting {
        key: Key::StoreWait,
        name: "store.wait",
        kind: Kind::Text,
        form: "WAIT",
        flag: None,
        default: Fallback::Fixed("60s"),
        doc: "How long a start waits for a Redis that is away, loads its data, or has no room for the functions, before it \
              leaves with 69: whoever supervises it starts it again.",
    },
    Setting {
        key: Key::StorePasswordFile,
        name: "store.password_file",
        kind: Kind::Text,
        form: "FILE",
        flag: None,
        default: Fallback::Found {
            how: "the password of `store.url`",
            example: "/etc/turnway/redis-password",
        },
        doc: "A file with the password of the user of `store.url`, which then names none. It is read at each connection, so \
              also after a refused login: a change needs no signal.",
    },
    Setting {
        key: Key::StoreCa,
        name: "store.ca",
        kind: Kind::Text,
        form: "FILE",
        flag: None,
        default: Fallback::Found { how: "the system's certificates", example: "/etc/turnway/redis-ca.pem" },
        doc: "Certificates that vouch for a Redis by `rediss://…` and its Sentinels, in PEM, in place of the system's.",
    },
    Setting {
        key: Key::StoreClientCert,
        name: "store.client_cert",
        kind: Kind::Text,
        form: "FILE",
        flag: None,
        default: Fallback::Found { how: "none", example: "/etc/turnway/redis-cert.pem" },
        doc: "The certificate that this node shows a Redis by `rediss://…` and its Sentinels, in PEM, followed by those that \
              vouch for it. It is read at each connection, as are `store.ca` and `store.client_key`.",
    },
    Setting {
        key: Key::StoreClientKey,
        name: "store.client_key",
        kind: Kind::Text,
        form: "FILE",
        flag: None,
        default: Fallback::Found {
            how: "none, as for `store.client_cert`",
            example: "/etc/turnway/redis-key.pem",
        },
        doc: "The key of `store.client_cert`, in PEM and not encrypted.",
    },
    Setting {
        key: Key::StoreRetention,
        name: "store.retention",
        kind: Kind::Text,
        form: "keep|facts=N",
        flag: Some("--retention"),
        default: Fallback::Fixed("keep"),
        doc: "How much history is kept: everything, for ever, or at least the last N facts of each session and \
              never less than its open turns. Whoever resumes from before that is told `reset`, `trimmed`.",
    },
    Setting {
        key: Key::StoreMaxAge,
        name: "store.max_age",
        kind: Kind::Text,
        form: "WAIT|off",
        flag: None,
        default: Fallback::Fixed("off"),
        doc: "How long a session is kept after its last fact, such as `720h`: then it is deleted with everything in it, \
              as by `DELETE /v1/sessions/{session_id}`, open or closed. None is deleted while a turn of it runs or waits. \
              Each node looks through all sessions by its own setting; give all nodes of a fleet the same.",
    },
    Setting {
        key: Key::StoreCache,
        name: "store.cache",
        kind: Kind::Size,
        form: "SIZE",
        flag: None,
        default: Fallback::Fixed("2MiB"),
        doc: "Memory for pages of an embedded store's file.",
    },
    Setting {
        key: Key::StoreReserve,
        name: "store.reserve",
        kind: Kind::Size,
        form: "SIZE",
        flag: None,
        default: Fallback::Fixed("64MiB"),
        doc: "Inputs are refused (`store_unavailable`) while the disk of an embedded store has less room than \
              this, so that turns under way can still be recorded.",
    },
    Setting {
        key: Key::StoreSkew,
        name: "store.skew",
        kind: Kind::Text,
        form: "DURATION|off",
        flag: None,
        default: Fallback::Fixed("60s"),
        doc: "A node whose system's clock differs from the store's by more than this, for 30 s or since its start, is \
              not ready (`clock`). It serves all the same, by the store's clock; but certificates of agents are held \
              against the system's. `off`: never.",
    },
    Setting {
        key: Key::AuthMode,
        name: "auth.mode",
        kind: Kind::Text,
        form: "none|keys|jwt|keys+jwt",
        flag: Some("--auth"),
        default: Fallback::Fixed("none"),
        doc: "Who may connect: whoever has an API key of `turnway key new` (`keys`), a token of an identity \
              provider (`jwt`), either (`keys+jwt`), or everybody who reaches the node (`none`), which therefore \
              serves this machine only: `listen.http` must be a loopback address.",
    },
    Setting {
        key: Key::AuthPepper,
        name: "auth.pepper",
        kind: Kind::Text,
        form: "FILE",
        flag: Some("--auth-pepper"),
        default: Fallback::Found { how: "none; keys cannot be made or used", example: "/etc/turnway/pepper" },
        doc: "The secret that keys are hashed with before they are stored: a file with 32 bytes or more of text \
              (`openssl rand -hex 32`), the same for all nodes of a fleet, and not in the store. Without it no key \
              is good any more.",
    },
    Setting {
        key: Key::AuthLockout,
        name: "auth.lockout",
        kind: Kind::Switch,
        form: "BOOL",
        flag: None,
        default: Fallback::Fixed("true"),
        doc: "Answer 429 to everything that comes from an address for five minutes after ten bad credentials within one \
              (of IPv6: from one /64). Where many come from one address, as behind a proxy of another machine that \
              speaks no PROXY protocol, switch it off: one of them could lock out all.",
    },
    Setting {
        key: Key::AuthJwks,
        name: "auth.jwks",
        kind: Kind::Text,
        form: "URL|FILE",
        flag: Some("--auth-jwks"),
        default: Fallback::Found { how: "none; needed for jwt", example: "https://id.example.com/jwks.json" },
        doc: "The public keys of the provider whose tokens are good (JWKS): `https://…`, fetched every five minutes \
              and when a token names a key that is not known, or a file.",
    },
    Setting {
        key: Key::AuthIssuer,
        name: "auth.issuer",
        kind: Kind::Text,
        form: "TEXT",
        flag: Some("--auth-issuer"),
        default: Fallback::Found { how: "none; needed for jwt", example: "https://id.example.com/" },
        doc: "Required `iss` of tokens, compared exactly.",
    },
    Setting {
        key: Key::AuthAudience,
        name: "auth.audience",
        kind: Kind::Text,
        form: "TEXT",
        flag: Some("--auth-audience"),
        default: Fallback::Found { how: "none; needed for jwt", example: "turnway" },
        doc: "Required `aud` of tokens, or one of several.",
    },
    Setting {
        key: Key::AuthAlgorithms,
        name: "auth.algorithms",
        kind: Kind::Text,
        form: "NAME,…",
        flag: None,
        default: Fallback::Fixed("RS256,ES256,EdDSA"),
        doc: "Accepted signature algorithms of tokens, with commas between the names.",
    },
    Setting {
        key: Key::RateConnection,
        name: "rate.connection",
        kind: Kind::Text,
        form: "N/s|N/m|off",
        flag: None,
        default: Fallback::Found {
            how: "100/s with authentication, else off",
            example: "100/s",
        },
        doc: "How often one WebSocket connection may ask for something; two seconds' worth may come at once. What \
              stops work, or subscribes, or is only a ping is counted apart from the rest, at the same rate.",
    },
    Setting {
        key: Key::RateKey,
        name: "rate.key",
        kind: Kind::Text,
        form: "N/s|N/m|off",
        flag: None,
        default: Fallback::Found {
            how: "1000/s with authentication, else off",
            example: "1000/s",
        },
        doc: "The same for all clients with one credential, at all nodes of a fleet together.",
    },
    Setting {
        key: Key::RateTenant,
        name: "rate.tenant",
        kind: Kind::Text,
        form: "N/s|N/m|off",
        flag: None,
        default: Fallback::Fixed("off"),
        doc: "The same for all clients of one tenant, at all nodes of a fleet together.",
    },
    Setting {
        key: Key::ToolsServedBy,
        name: "tools.served_by",
        kind: Kind::List,
        form: "USER[|USER…]",
        flag: Some("--tools-served-by"),
        default: Fallback::Found { how: "nobody", example: "runner|acme/runner" },
        doc: "As whom somebody must have come to run tools for the sessions of every tenant: `USER` of the default \
              tenant or `TENANT/USER`. A key made with `--serves tools:NAME` needs no such entry, and runs tools for \
              its own tenant only. With `auth.mode = \"none\"` anybody may.",
    },
    Setting {
        key: Key::ShareTenant,
        name: "share.tenant",
        kind: Kind::Text,
        form: "FRACTION",
        flag: None,
        default: Fallback::Fixed("0.75"),
        doc: "The part of this node that one tenant may hold at a time: of attempts at agents, sessions, connections, \
              subscriptions, and content of inputs. The rest is kept for tenants that hold less. A turn that finds no \
              place waits; other requests are refused with `over_share`. Without authentication there are no shares.",
    },
    Setting {
        key: Key::ShareUser,
        name: "share.user",
        kind: Kind::Text,
        form: "FRACTION",
        flag: None,
        default: Fallback::Fixed("0.75"),
        doc: "The part of its tenant's share that one user may hold at a time. What a service key does with `act_as` \
              counts for the users it acts for.",
    },
    Setting {
        key: Key::LimitAttempts,
        name: "limit.attempts",
        kind: Kind::Text,
        form: "N",
        flag: None,
        default: Fallback::Fixed("8192"),
        doc: "Turns that agents outside this process answer at a time; what is more waits. Fewer where the process may \
              open too few files; the node logs the number at its start.",
    },
    Setting {
        key: Key::LimitSessions,
        name: "limit.sessions",
        kind: Kind::Text,
        form: "N",
        flag: None,
        default: Fallback::Fixed("32768"),
        doc: "Sessions with turns that run or wait, which this node owns at a time.",
    },
    Setting {
        key: Key::LimitSubscriptions,
        name: "limit.subscriptions",
        kind: Kind::Text,
        form: "N",
        flag: None,
        default: Fallback::Fixed("200000"),
        doc: "Sessions that all connections of this node are subscribed to, counted once for each connection.",
    },
    Setting {
        key: Key::QuotaTenant,
        name: "quota.tenant",
        kind: Kind::Text,
        form: "FRACTION|SIZE|off",
        flag: None,
        default: Fallback::Fixed("0.5"),
        doc: "Bytes that the sessions of one tenant may take: a part of what the store may hold (an embedded one: what \
              is stored and the space that is free above `store.reserve`; a Redis: its `maxmemory`, if it has one; \
              `memory:`: 2 GiB), or a size. Over it inputs are refused with `quota_exceeded`; turns under way are still \
              recorded. Without authentication only a size holds.",
    },
    Setting {
        key: Key::QuotaUser,
        name: "quota.user",
        kind: Kind::Text,
        form: "FRACTION|SIZE|off",
        flag: None,
        default: Fallback::Fixed("0.25"),
        doc: "The same for one user: bytes of the sessions that are its own.",
    },
    Setting {
        key: Key::NodeName,
        name: "node.name",
        kind: Kind::Text,
        form: "NAME",
        flag: Some("--node-name"),
        default: Fallback::Found { how: "the machine's name", example: "edge-1" },
        doc: "A label for people; a node's id is one start of the process.",
    },
];
