//! Budgets of calls of models on real nodes: what is reserved before a call and counted after it, whose calls are
//! refused, and the operators' API and commands. Never looks into the store.
use crate::caller::{Caller, Received};
use crate::route::Route;
use crate::stage::{AGENT, PRICES, Stage, StoreKind, until_ended};
use crate::world::{flag, open_node, until_metric, with_gpt};
use serde_json::{Value, json};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tempfile::tempdir;
use tokio::time::interval;
use turnway_tests::real::PATIENCE;
use turnway_tests::real::identity::{Key, guarded};
use turnway_tests::real::node::Node;
use turnway_tests::real::upstream::{Answer, ScriptedUpstream, unreachable_url};
use turnway_tests::real::web::{Reply, Web};
use turnway_tests::real::wire::{WebSocketClient, invoke};

/// A limit that no test reaches.
pub(crate) const PLENTY: u64 = 1_000_000_000;

// === the operators' API, calls and answers ===

/// The operators' API of one node, for one tenant. Accounts are `user:NAME`, `key:ID`, `agent:ID` and `tenant`.
#[derive(Clone, Debug)]
pub(crate) struct Budgets {
    pub(crate) web: Web,
    tenant: &'static str,
}

impl Budgets {
    pub(crate) fn at(node: &Node) -> Self {
        Self { web: Web::new(node.admin, None), tenant: "default" }
    }

    pub(crate) fn of(self, tenant: &'static str) -> Self {
        Self { tenant, ..self }
    }

    /// Returns the members that name an account.
    pub(crate) fn named(&self, account: &str) -> Value {
        let mut named = match account.split_once(':') {
            Some((kind, name)) => json!({"kind": kind, "name": name}),
            None => json!({"kind": account}),
        };
        if self.tenant != "default" {
            named["tenant"] = self.tenant.into();
        }
        named
    }

    pub(crate) async fn send(&self, method: &str, path: &str, body: &str) -> Reply {
        self.web.ask(method, path, &[("content-type", "application/json")], body).await
    }

    /// Sets limits, which a period completes; returns the budget.
    pub(crate) async fn set(&self, account: &str, limits: Value) -> Value {
        let mut body = self.named(account);
        let Value::Object(limits) = limits else { panic!("limits are an object: {limits}") };
        body.as_object_mut().expect("an object").extend(limits);
        let reply = self.send("PUT", "/v1/budgets", &body.to_string()).await;
        assert_eq!(reply.status, 200, "{body}: {}", reply.text);
        reply.json()
    }

    pub(crate) async fn set_tokens(&self, account: &str, tokens: u64) -> Value {
        self.set(account, json!({"tokens": tokens, "period": "total"})).await
    }

    pub(crate) async fn remove(&self, account: &str) -> Reply {
        self.send("POST", "/v1/budgets:remove", &self.named(account).to_string()).await
    }

    pub(crate) async fn list(&self) -> Vec<Value> {
        let mut answer = self.web.json(&format!("/v1/budgets?tenant={}", self.tenant)).await;
        let Value::Array(budgets) = answer["budgets"].take() else { panic!("no list: {answer}") };
        budgets
    }

    pub(crate) async fn find(&self, account: &str) -> Option<Value> {
        let account = self.named(account);
        let all = self.list().await;
        all.into_iter().find(|budget| budget["kind"] == account["kind"] && budget["name"] == account["name"])
    }

    pub(crate) async fn show(&self, account: &str) -> Value {
        self.find(account).await.unwrap_or_else(|| panic!("{account} has no budget"))
    }

    /// Waits until the budget of an account fits.
    pub(crate) async fn until(&self, account: &str, fits: impl Fn(&Value) -> bool) -> Value {
        let begun = Instant::now();
        let mut looks = interval(Duration::from_millis(20));
        loop {
            looks.tick().await;
            let budget = self.show(account).await;
            if fits(&budget) {
                return budget;
            }
            assert!(begun.elapsed() < PATIENCE, "{account}: {budget}");
        }
    }

    /// Waits until no call of an account is open; what its calls used must then be this.
    pub(crate) async fn until_settled(&self, account: &str, tokens: u64, cost: u64) -> Value {
        let budget = self.until(account, |budget| budget["open_calls"] == 0).await;
        assert_eq!(budget["used"], json!({"tokens": tokens, "cost": cost}), "{account}: {budget}");
        assert_eq!(budget["reserved"], json!({"tokens": 0, "cost": 0}), "{account}: {budget}");
        budget
    }

    /// Waits until so many calls of an account are open; together they must have reserved this.
    pub(crate) async fn until_reserved(&self, account: &str, calls: usize, tokens: u64) -> Value {
        let budget = self.until(account, |budget| budget["open_calls"] == calls).await;
        assert_eq!(budget["reserved"]["tokens"], tokens, "{account}: {budget}");
        budget
    }
}

/// Returns a body with these members before all others, and with no other limit of the output.
pub(crate) fn request(route: Route, model: &str, members: &str, stream: bool) -> String {
    let body = route.request(model, stream).replace("\"max_tokens\":1024,", "");
    let comma = if members.is_empty() { "" } else { "," };
    body.replacen('{', &format!("{{{members}{comma}"), 1)
}

/// Returns the member with the output limit.
pub(crate) fn limit(route: Route, output: u64) -> String {
    let name = match route {
        Route::Chat => "max_completion_tokens",
        Route::Responses => "max_output_tokens",
        Route::Messages => "max_tokens",
        // A limit that upstreams do not know.
        Route::Embeddings => "dimensions",
    };
    format!("\"{name}\":{output}")
}

/// Returns the most tokens that a call uses.
pub(crate) fn bound(body: &str, output: u64) -> u64 {
    body.len() as u64 + output
}

/// Returns the tokens and the cost of an answer of [`Route`], at [`PRICES`].
pub(crate) fn usage(route: Route) -> (u64, u64) {
    if route == Route::Embeddings { (8, 20) } else { (42, 183) }
}

pub(crate) fn user(caller: &Caller, name: &str) -> Caller {
    caller.clone().with("x-user-id", name)
}

/// Asserts that a budget has refused a call, on a connection that stays.
pub(crate) fn must_refuse(route: Route, answer: &Received) {
    route.must_be(answer, 429, "budget_exhausted");
    assert_eq!((answer.header("x-should-retry"), answer.intact), ("false", true), "{answer:?}");
}

/// Starts an upstream that answers every call as a whole or as a stream.
pub(crate) async fn answering() -> ScriptedUpstream {
    ScriptedUpstream::start(|request| Route::of(&request.path).script(request.json()["stream"] == true)).await
}

pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("a time after 1970");
    u64::try_from(since.as_millis()).expect("a time before 500,000,000")
}

// === upper bounds ===

/// Limits of the output in a body, and their tokens under a `max_output` of 50.
pub(crate) const OUTPUT_LIMITS: [(Route, &str, u64); 15] = [
    (Route::Chat, "", 50),
    (Route::Chat, "\"max_tokens\":null", 50),
    (Route::Chat, "\"max_tokens\":10", 10),
    (Route::Chat, "\"max_tokens\":0", 0),
    (Route::Chat, "\"max_completion_tokens\":20", 20),
    (Route::Chat, "\"max_tokens\":10,\"max_completion_tokens\":60", 60),
    (Route::Chat, "\"max_tokens\":60,\"max_completion_tokens\":10", 60),
    (Route::Chat, "\"n\":3,\"max_tokens\":20", 60),
    (Route::Chat, "\"max_completion_tokens\":7,\"n\":2", 14),
    (Route::Responses, "", 50),
    (Route::Responses, "\"max_output_tokens\":60", 60),
    (Route::Responses, "\"max_output_tokens\":10", 10),
    (Route::Messages, "", 50),
    (Route::Messages, "\"max_tokens\":10", 10),
    (Route::Embeddings, "", 0),
];

/// Covers: PR-10: a limit equal to the bound admits the call, and one token less refuses it.
#[tokio::test]
async fn bound_is_the_body_and_its_output_limit() {
    let upstream = answering().await;
    let dir = tempdir().expect("a directory");
    let (node, caller) = with_gpt(&dir, &upstream, "max_output=50").await;
    let budgets = Budgets::at(&node);
    let mut calls = 0;
    for (n, (route, members, output)) in OUTPUT_LIMITS.into_iter().enumerate() {
        for stream in [false, true] {
            if stream && route == Route::Embeddings {
                continue;
            }
            let name = format!("user-{n}-{stream}");
            let account = format!("user:{name}");
            let caller = user(&caller, &name);
            let body = request(route, "gpt", members, stream);
            budgets.set_tokens(&account, bound(&body, output) - 1).await;
            must_refuse(route, &caller.post(route.path(), body.clone()).await);
            assert_eq!(upstream.calls(), calls, "{route:?} {members}: an upstream saw a refused call");
            budgets.until_settled(&account, 0, 0).await;
            budgets.set_tokens(&account, bound(&body, output)).await;
            let answer = caller.post(route.path(), body).await;
            assert_eq!(answer.status, 200, "{route:?} {members} {stream}: {}", answer.text());
            calls += 1;
            budgets.until_settled(&account, usage(route).0, 0).await;
        }
    }
    #[expect(clippy::cast_precision_loss, reason = "a small count")]
    let refused = calls as f64;
    until_metric(&node, "turnway_model_budget_refusals_total", "", refused).await;
}

/// Covers: PR-10.
#[tokio::test]
async fn call_without_an_output_limit_is_refused() {
    let upstream = answering().await;
    let dir = tempdir().expect("a directory");
    let node = open_node(&dir, &[flag("gpt", &upstream, ""), flag("priced", &upstream, PRICES)]).await;
    let budgets = Budgets::at(&node);
    let caller = Caller::new(&node);
    budgets.set_tokens("user:ann", PLENTY).await;
    budgets.set("user:eve", json!({"cost": PLENTY, "period": "total"})).await;
    let unlimited = [
        (Route::Chat, ""),
        (Route::Chat, "\"max_tokens\":-1"),
        (Route::Chat, "\"max_output_tokens\":10"),
        (Route::Responses, ""),
        (Route::Responses, "\"max_output_tokens\":null"),
        (Route::Messages, ""),
    ];
    for (route, members) in unlimited {
        for stream in [false, true] {
            for (name, model) in [("ann", "gpt"), ("eve", "priced")] {
                let answer = user(&caller, name).post(route.path(), request(route, model, members, stream)).await;
                route.must_be(&answer, 400, "output_limit_required");
                assert_eq!((answer.header("x-should-retry"), answer.intact), ("false", true), "{answer:?}");
            }
        }
    }
    assert_eq!(upstream.calls(), 0);
    for account in ["user:ann", "user:eve"] {
        budgets.until_settled(account, 0, 0).await;
    }
    // Neither embeddings nor users without a budget need a limit.
    for (name, route) in [("ann", Route::Embeddings), ("bob", Route::Chat), ("bob", Route::Messages)] {
        let answer = user(&caller, name).post(route.path(), request(route, "gpt", "", false)).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
}

/// Covers: PR-10: any candidate may serve the call.
#[tokio::test]
async fn bound_covers_every_fallback() {
    let upstream = answering().await;
    let dir = tempdir().expect("a directory");
    let models = [
        flag("gpt", &upstream, "max_output=50,price_input=1000000,price_output=1000000,fallback=other"),
        flag("other", &upstream, "max_output=80,price_input=2000000,price_output=3000000"),
        flag("open", &upstream, "max_output=50,price_input=1,price_output=1,fallback=free"),
        flag("free", &upstream, ""),
    ];
    let node = open_node(&dir, &models).await;
    let budgets = Budgets::at(&node);
    let caller = Caller::new(&node);
    let body = request(Route::Chat, "gpt", "", false);
    let tokens = bound(&body, 80);
    let cost = 2 * body.len() as u64 + 3 * 80;
    for (name, limits, is_enough) in [
        ("a", json!({"tokens": tokens - 1}), false),
        ("b", json!({"tokens": tokens}), true),
        ("c", json!({"cost": cost - 1}), false),
        ("d", json!({"cost": cost}), true),
    ] {
        let mut limits = limits;
        limits["period"] = "day".into();
        budgets.set(&format!("user:{name}"), limits).await;
        let answer = user(&caller, name).post(Route::Chat.path(), body.clone()).await;
        if is_enough {
            assert_eq!(answer.status, 200, "{name}: {}", answer.text());
            // At the price of the upstream that served it.
            budgets.until_settled(&format!("user:{name}"), 42, 42).await;
        } else {
            must_refuse(Route::Chat, &answer);
        }
    }
    budgets.set_tokens("user:e", PLENTY).await;
    let answer = user(&caller, "e").post(Route::Chat.path(), request(Route::Chat, "open", "", false)).await;
    Route::Chat.must_be(&answer, 400, "output_limit_required");
    budgets.set("user:f", json!({"cost": PLENTY, "period": "day"})).await;
    let limited = request(Route::Chat, "open", "\"max_tokens\":1", false);
    must_refuse(Route::Chat, &user(&caller, "f").post(Route::Chat.path(), limited).await);
}

// === amounts after a call ===

/// Covers: PR-10.
#[tokio::test]
async fn settled_amount_is_what_the_upstream_reported() {
    let upstream = answering().await;
    let dir = tempdir().expect("a directory");
    let (node, caller) = with_gpt(&dir, &upstream, PRICES).await;
    let budgets = Budgets::at(&node);
    budgets.set("user:ann", json!({"tokens": PLENTY, "cost": PLENTY, "period": "total"})).await;
    let caller = user(&caller, "ann");
    let mut tokens = 0;
    let mut cost = 0;
    for (route, stream) in Route::modes() {
        let body = request(route, "gpt", &limit(route, 100), stream);
        let answer = caller.post(route.path(), body).await;
        assert_eq!((answer.status, answer.body), (200, route.script_bytes(stream)), "{route:?} {stream}");
        tokens += usage(route).0;
        cost += usage(route).1;
        let budget = budgets.until_settled("user:ann", tokens, cost).await;
        assert_eq!(budget["remaining_tokens"], PLENTY - tokens, "{budget}");
        assert_eq!(budget["remaining_cost"], PLENTY - cost, "{budget}");
        assert_eq!((&budget["overdraft"]["tokens"], &budget["overdraft_calls"]), (&json!(0), &json!(0)), "{budget}");
    }
    // A caller that does not ask for the usage of its stream.
    let asks = ",\"stream_options\":{ \"include_usage\" :true}";
    let silent = request(Route::Chat, "gpt", &limit(Route::Chat, 100), true).replace(asks, "");
    assert!(!silent.contains("include_usage"), "{silent}");
    let answer = caller.post(Route::Chat.path(), silent).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    budgets.until_settled("user:ann", tokens + 42, cost + 183).await;
}

/// Covers: PR-10.
#[tokio::test]
async fn usage_beyond_the_reservation_counts_in_full() {
    let answer = "{\"choices\":[{\"index\":0,\"message\":{},\"finish_reason\":\"stop\"}],\
                  \"usage\":{\"prompt_tokens\":5000,\"completion_tokens\":700}}";
    let upstream = ScriptedUpstream::always(Answer::json(200, answer)).await;
    let dir = tempdir().expect("a directory");
    let (node, caller) = with_gpt(&dir, &upstream, PRICES).await;
    let budgets = Budgets::at(&node);
    budgets.set("user:ann", json!({"tokens": 1000, "cost": 10_000, "period": "total"})).await;
    let caller = user(&caller, "ann");
    let body = request(Route::Chat, "gpt", &limit(Route::Chat, 10), false);
    assert_eq!(caller.post(Route::Chat.path(), body.clone()).await.status, 200);
    let cost = 12_500 + 7000;
    let budget = budgets.until_settled("user:ann", 5700, cost).await;
    let reserved_cost = (body.len() as u64 * 2_500_000).div_ceil(1_000_000) + 100;
    let overdraft = json!({"tokens": 5700 - bound(&body, 10), "cost": cost - reserved_cost});
    assert_eq!((&budget["overdraft"], &budget["overdraft_calls"]), (&overdraft, &json!(1)), "{budget}");
    assert_eq!((&budget["remaining_tokens"], &budget["remaining_cost"]), (&json!(0), &json!(0)), "{budget}");
    must_refuse(Route::Chat, &caller.post(Route::Chat.path(), body).await);
    budgets.until_settled("user:ann", 5700, cost).await;
    assert_eq!(upstream.calls(), 1);
}

/// Covers: PR-10.
#[tokio::test]
async fn call_that_no_upstream_served_counts_nothing() {
    let statuses = [400, 401, 404, 413, 422, 429, 500, 502, 503];
    let upstream = ScriptedUpstream::start(|request| {
        let model = request.json()["model"].as_str().expect("a name").to_owned();
        Answer::json(model.trim_start_matches('m').parse().expect("a status"), "{\"error\":{\"message\":\"no\"}}")
    })
    .await;
    let dir = tempdir().expect("a directory");
    let mut models: Vec<String> =
        statuses.iter().map(|status| flag(&format!("m{status}"), &upstream, PRICES)).collect();
    models.push(format!("gone={}", unreachable_url().await));
    let node = open_node(&dir, &models).await;
    let budgets = Budgets::at(&node);
    budgets.set_tokens("user:ann", PLENTY).await;
    let caller = user(&Caller::new(&node), "ann");
    let names: Vec<String> = statuses.iter().map(|status| format!("m{status}")).collect();
    for name in names.iter().map(String::as_str).chain(["gone"]) {
        for route in Route::STREAMED {
            let body = request(route, name, &limit(route, 100), route == Route::Chat);
            let answer = caller.post(route.path(), body).await;
            assert!(answer.status >= 400 && answer.intact, "{name}: {answer:?}");
            budgets.until_settled("user:ann", 0, 0).await;
        }
    }
}

/// Covers: PR-10.
#[tokio::test]
async fn served_call_without_usage_counts_its_reservation() {
    let upstream = ScriptedUpstream::start(|request| {
        let first = Route::Chat.events()[0].as_bytes();
        let error = b"data: {\"error\":{\"message\":\"overloaded\",\"type\":\"server_error\",\"code\":503}}\n\n";
        match request.json()["model"].as_str() {
            Some("uncounted") => Answer::json(200, "{\"choices\":[{\"index\":0,\"message\":{}}]}"),
            Some("ended") => Answer::stream().piece(first).end(),
            Some("failing") => Answer::stream().piece(first).piece(error).end(),
            Some("broken") => Answer::new().cut(),
            Some("late") => Answer::new().hang(),
            Some("paused") => Answer::stream().piece(first).hang(),
            other => panic!("no model {other:?}"),
        }
    })
    .await;
    let dir = tempdir().expect("a directory");
    let names = ["uncounted", "ended", "failing", "broken", "late", "paused"];
    let times = |name: &str| match name {
        "late" => "first_byte=300ms",
        "paused" => "silence=300ms",
        _ => "",
    };
    let node = open_node(&dir, &names.map(|name| flag(name, &upstream, times(name)))).await;
    let budgets = Budgets::at(&node);
    for name in names {
        let account = format!("user:{name}");
        let caller = user(&Caller::new(&node), name);
        budgets.set_tokens(&account, PLENTY).await;
        let body = request(Route::Chat, name, &limit(Route::Chat, 100), name != "uncounted");
        caller.post(Route::Chat.path(), body.clone()).await;
        budgets.until_settled(&account, bound(&body, 100), 0).await;
    }
}

/// Covers: PR-10: the counts at the beginning of a stream are not those of its end.
#[tokio::test]
async fn interrupted_stream_counts_its_reservation() {
    let upstream = ScriptedUpstream::start(|request| {
        let pieces = Answer::stream().piece(Route::of(&request.path).events()[0].as_bytes());
        if request.json()["model"] == "cut" { pieces.cut() } else { pieces.hang() }
    })
    .await;
    let dir = tempdir().expect("a directory");
    let node = open_node(&dir, &[flag("cut", &upstream, ""), flag("left", &upstream, "")]).await;
    let budgets = Budgets::at(&node);
    for route in Route::STREAMED {
        for model in ["cut", "left"] {
            let name = format!("{model}-{route:?}");
            let account = format!("user:{name}");
            let caller = user(&Caller::new(&node), &name);
            budgets.set_tokens(&account, PLENTY).await;
            let body = request(route, model, &limit(route, 1000), true);
            let mut open = caller.open("POST", route.path(), body.clone()).await;
            if model == "left" {
                open.until_exactly(route.events()[0].as_bytes()).await;
                budgets.until_reserved(&account, 1, bound(&body, 1000)).await;
                drop(open);
            } else {
                open.rest().await;
            }
            budgets.until_settled(&account, bound(&body, 1000), 0).await;
        }
    }
}

// === accounts ===

/// Makes a call that each of these accounts refuses by itself, and that all of them admit after that.
pub(crate) async fn must_refuse_one_by_one(
    budgets: &Budgets,
    accounts: &[String],
    caller: &Caller,
    upstream: &ScriptedUpstream,
) {
    let body = request(Route::Chat, "gpt", &limit(Route::Chat, 100), false);
    for (n, refusing) in accounts.iter().enumerate() {
        let used = n as u64 * usage(Route::Chat).0;
        for account in accounts {
            let room = if account == refusing { bound(&body, 100) - 1 } else { PLENTY };
            budgets.set_tokens(account, used + room).await;
        }
        must_refuse(Route::Chat, &caller.post(Route::Chat.path(), body.clone()).await);
        assert_eq!(upstream.calls(), n, "an upstream saw a call that {refusing} refused");
        for account in accounts {
            budgets.until_settled(account, used, 0).await;
        }
        budgets.set_tokens(refusing, used + bound(&body, 100)).await;
        let answer = caller.post(Route::Chat.path(), body.clone()).await;
        assert_eq!(answer.status, 200, "{refusing}: {}", answer.text());
        for account in accounts {
            budgets.until_settled(account, used + usage(Route::Chat).0, 0).await;
        }
    }
}

/// Covers: PR-10: the key, its user and its tenant.
#[tokio::test]
async fn key_user_and_tenant_each_refuse_a_call() {
    let upstream = answering().await;
    let dir = tempdir().expect("a directory");
    let node = guarded(&dir, &["--model", &flag("gpt", &upstream, "")]).await;
    let key = Key::make(&node, &["--user", "ann", "--scopes", "models"]).await;
    let accounts = [format!("key:{}", key.id), "user:ann".to_owned(), "tenant".to_owned()];
    let caller = Caller::new(&node).bearer(&key.text);
    must_refuse_one_by_one(&Budgets::at(&node), &accounts, &caller, &upstream).await;
}

/// Covers: PR-10: a caller without a name is the user `local`.
#[tokio::test]
async fn user_without_a_key_has_a_budget() {
    let upstream = answering().await;
    let dir = tempdir().expect("a directory");
    let (node, caller) = with_gpt(&dir, &upstream, "").await;
    let accounts = ["user:local".to_owned(), "tenant".to_owned()];
    must_refuse_one_by_one(&Budgets::at(&node), &accounts, &caller, &upstream).await;
}

/// Covers: PR-10.
#[tokio::test]
async fn exhausted_account_leaves_others_alone() {
    let upstream = answering().await;
    let dir = tempdir().expect("a directory");
    let node = guarded(&dir, &["--model", &flag("gpt", &upstream, "")]).await;
    let budgets = Budgets::at(&node);
    let one = Key::make(&node, &["--user", "ann", "--scopes", "models"]).await;
    let two = Key::make(&node, &["--user", "ann", "--scopes", "models"]).await;
    let bob = Key::make(&node, &["--user", "bob", "--scopes", "models"]).await;
    let acme = Key::make(&node, &["--user", "ann", "--tenant", "acme", "--scopes", "models"]).await;
    let body = request(Route::Chat, "gpt", &limit(Route::Chat, 100), false);
    let call = async |key: &Key| Caller::new(&node).bearer(&key.text).post(Route::Chat.path(), body.clone()).await;
    let of_acme = budgets.clone().of("acme");
    of_acme.set_tokens("user:ann", PLENTY).await;
    budgets.set_tokens("user:ann", PLENTY).await;
    let mut used = 0;
    for (account, keys) in [
        (format!("key:{}", one.id), [(&one, false), (&two, true), (&bob, true), (&acme, true)]),
        ("user:ann".to_owned(), [(&one, false), (&two, false), (&bob, true), (&acme, true)]),
        ("tenant".to_owned(), [(&one, false), (&two, false), (&bob, false), (&acme, true)]),
    ] {
        budgets.set_tokens(&account, 0).await;
        for (key, is_admitted) in keys {
            let answer = call(key).await;
            if is_admitted {
                assert_eq!(answer.status, 200, "{account}: {}", answer.text());
            } else {
                must_refuse(Route::Chat, &answer);
            }
        }
        used += 42;
        let budget = of_acme.until_settled("user:ann", used, 0).await;
        assert_eq!((&budget["tenant"], of_acme.list().await.len()), (&json!("acme"), 1), "{budget}");
    }
    budgets.until_settled("user:ann", 42, 0).await;
}

/// Covers: PR-10: calls with the token of a run count for its agent, its user and the tenant; refused ones are not recorded.
#[tokio::test]
async fn agent_user_and_tenant_of_a_run_each_refuse_a_call() {
    for store in StoreKind::ALL {
        let upstream = answering().await;
        let mut stage = Stage::start(store, 1, "", &["--model", &flag("gpt", &upstream, "")]).await;
        let mut run = stage.open_run("s1").await;
        let budgets = Budgets::at(&stage.nodes[0]);
        let accounts = [format!("agent:{AGENT}"), "user:ann".to_owned(), "tenant".to_owned()];
        must_refuse_one_by_one(&budgets, &accounts, &run.caller, &upstream).await;
        run.must_complete().await;
        until_ended(&stage.web(0), "s1", accounts.len()).await;
    }
}

/// Runs a turn of a model agent; returns the code of its failure.
async fn turn(client: &mut WebSocketClient, session: &str, agent: &str) -> Option<String> {
    let accepted = client.ask(session, invoke(session, agent, "hi")).await.expect("an answer");
    let is_end = |message: &Value| {
        message["run_id"] == accepted["run_id"] && (message["type"] == "done" || message["type"] == "error")
    };
    let end = client.until(is_end).await.expect("an end");
    end["code"].as_str().map(str::to_owned)
}

/// Covers: PR-10: calls of a model agent count for the agent, the user and the tenant.
#[tokio::test]
async fn refused_turn_of_a_model_agent_has_llm_error() {
    let stream = Answer::new().gate().head(200, &[("content-type", "text/event-stream")]);
    let upstream = ScriptedUpstream::always(stream.piece(&Route::Chat.stream_bytes()).end()).await;
    let model = flag("gpt", &upstream, "");
    let args = ["--model", &model, "--agent", "writer=model:gpt,max_output=64", "--agent", "endless=model:gpt"];
    let dir = tempdir().expect("a directory");
    let node = Node::start(dir.path(), &args).await;
    let budgets = Budgets::at(&node);
    let mut client = WebSocketClient::hello(node.http, "ann", vec![]).await.expect("let in");
    let accounts = ["agent:writer", "user:ann", "tenant"];
    for account in accounts {
        budgets.set_tokens(account, PLENTY).await;
    }
    // Every session sends the same conversation.
    let mut most = 0;
    for (n, refusing) in [None, Some("agent:writer"), Some("user:ann"), Some("tenant")].into_iter().enumerate() {
        let used = 42 * n as u64;
        if let Some(refusing) = refusing {
            budgets.set_tokens(refusing, used + most - 1).await;
            let code = turn(&mut client, &format!("refused-{n}"), "writer").await;
            assert_eq!((code.as_deref(), upstream.calls()), (Some("llm_error"), n), "{refusing}");
            budgets.set_tokens(refusing, used + most).await;
        }
        let session = format!("s{n}");
        let mut waiting = Box::pin(turn(&mut client, &session, "writer"));
        let exchange = tokio::select! {
            exchange = upstream.next() => exchange,
            code = &mut waiting => panic!("{refusing:?}: the turn ended without a call: {code:?}"),
        };
        most = exchange.request.body.len() as u64 + 64;
        for account in accounts {
            budgets.until_reserved(account, 1, most).await;
        }
        exchange.release();
        assert_eq!(waiting.await, None);
        for account in accounts {
            budgets.until_settled(account, used + 42, 0).await;
            budgets.set_tokens(account, PLENTY).await;
        }
    }
    budgets.set_tokens("agent:writer", 0).await;
    assert_eq!(turn(&mut client, "last", "writer").await.as_deref(), Some("llm_error"));
    assert_eq!(
        turn(&mut client, "unlimited", "endless").await.as_deref(),
        Some("llm_error"),
        "without an output limit"
    );
    assert_eq!(upstream.calls(), 4);
}

// === cost ===

/// Covers: PR-10: a limit of cost equal to the bound admits the call, and a millionth less refuses it.
#[tokio::test]
async fn cost_bound_is_that_of_the_dearest_tokens() {
    let upstream = answering().await;
    let cheap = "price_input=1000000,price_cached=500000,price_output=2000000";
    let dear_cache = "price_input=1000000,price_cached=3000000,price_output=2000000";
    let models = [
        ("plain", "price_input=1000000,price_output=3000000", Route::Chat, [1_000_000, 3_000_000], 30 + 36),
        ("cheap-cache", cheap, Route::Responses, [1_000_000, 2_000_000], 20 + 5 + 24),
        ("dear-cache", dear_cache, Route::Messages, [3_000_000, 2_000_000], 20 + 30 + 24),
        ("tiny", "price_input=1,price_output=1", Route::Chat, [1, 1], 1),
        ("embeddings", "price_input=2000000", Route::Embeddings, [2_000_000, 0], 16),
    ];
    let flags = models.map(|(model, settings, ..)| flag(model, &upstream, settings));
    let dir = tempdir().expect("a directory");
    let node = open_node(&dir, &flags).await;
    let budgets = Budgets::at(&node);
    for (n, (model, _, route, [input, output], cost)) in models.into_iter().enumerate() {
        let account = format!("user:{model}");
        let caller = user(&Caller::new(&node), model);
        let body = request(route, model, &limit(route, 100), false);
        let most = (body.len() as u64 * input + 100 * output).div_ceil(1_000_000);
        budgets.set(&account, json!({"cost": most - 1, "period": "total"})).await;
        must_refuse(route, &caller.post(route.path(), body.clone()).await);
        assert_eq!(upstream.calls(), n);
        budgets.set(&account, json!({"cost": most, "period": "total"})).await;
        let answer = caller.post(route.path(), body).await;
        assert_eq!(answer.status, 200, "{model}: {}", answer.text());
        let budget = budgets.until_settled(&account, usage(route).0, cost).await;
        assert_eq!(
            (&budget["remaining_cost"], budget.get("remaining_tokens")),
            (&json!(most - cost), None),
            "{budget}"
        );
    }
}

/// Covers: PR-10.
#[tokio::test]
async fn call_without_a_price_is_refused_under_a_cost_limit() {
    let upstream = answering().await;
    let dir = tempdir().expect("a directory");
    let models = [
        flag("unpriced", &upstream, ""),
        flag("half", &upstream, "price_input=1000000"),
        flag("free", &upstream, "price_input=0,price_output=0"),
    ];
    let node = open_node(&dir, &models).await;
    let budgets = Budgets::at(&node);
    budgets.set("user:ann", json!({"cost": PLENTY, "period": "month"})).await;
    budgets.set("user:bob", json!({"tokens": PLENTY, "period": "month"})).await;
    budgets.set("user:eve", json!({"cost": 0, "period": "month"})).await;
    let cases = [
        ("ann", "unpriced", Route::Chat, false),
        ("ann", "unpriced", Route::Embeddings, false),
        ("ann", "half", Route::Messages, false),
        ("ann", "half", Route::Embeddings, true),
        ("bob", "unpriced", Route::Responses, true),
        ("eve", "half", Route::Embeddings, false),
        ("eve", "free", Route::Chat, true),
    ];
    let mut calls = 0;
    for (name, model, route, is_admitted) in cases {
        let body = request(route, model, &limit(route, 100), false);
        let answer = user(&Caller::new(&node), name).post(route.path(), body).await;
        if is_admitted {
            assert_eq!(answer.status, 200, "{name} {model}: {}", answer.text());
            calls += 1;
        } else {
            must_refuse(route, &answer);
        }
        assert_eq!(upstream.calls(), calls, "{name} {model} {route:?}");
    }
    budgets.until_settled("user:ann", 8, 8).await;
    budgets.until_settled("user:bob", 42, 0).await;
    budgets.until_settled("user:eve", 42, 0).await;
}
