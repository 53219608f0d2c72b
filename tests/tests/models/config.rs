//! Settings of models: their sources, and the report of their mistakes.
use crate::caller::Caller;
use crate::route::Route;
use crate::world::{flag, node_with_environment};
use std::path::Path;
use tempfile::tempdir;
use turnway_tests::real::command::run;
use turnway_tests::real::node::Node;
use turnway_tests::real::upstream::{Answer, ScriptedUpstream};

const URL: &str = "https://models.example/v1";

async fn check(dir: &Path, args: &[&str], env: &[(&str, &str)]) -> (Option<i32>, String) {
    let ended = run(dir, &[&["check-config"][..], args].concat(), env).await;
    (ended.code, ended.out + &ended.err)
}

/// Covers: PR-14.
#[tokio::test]
async fn settings_of_a_model_are_accepted() {
    let dir = tempdir().expect("a directory");
    let good = [
        format!("gpt={URL}"),
        format!("openai/gpt-5.2_x:free={URL}"),
        format!("gpt={URL},name=other,upstream_model=large,weight=0"),
        format!("gpt={URL},weight=1000,calls=1,key_header=x-api-key,retry_reused=true"),
        format!("gpt={URL},connect=1s,first_byte=10m,silence=30s,total=1h"),
        format!("{}={URL}", "x".repeat(128)),
        "gpt=http://127.0.0.1:11434/v1".to_owned(),
    ];
    for model in good {
        let checked = check(dir.path(), &["--model", &model], &[]).await;
        assert_eq!(checked.0, Some(0), "{model}: {}", checked.1);
    }
    let file = "[models.gpt]\nurl = \"https://models.example/v1\"\nfallback = [\"spare\"]\nweight = 2\n\
        [models.\"org/spare\"]\nurl = \"http://127.0.0.1:1/v1\"\nname = \"spare\"\nretry_reused = true\ntotal = \"5m\"\n";
    std::fs::write(dir.path().join("good.toml"), file).expect("a file");
    let checked = check(dir.path(), &["--config", "good.toml"], &[]).await;
    assert_eq!(checked.0, Some(0), "{}", checked.1);
}

/// Covers: PR-9, PR-14.
#[tokio::test]
async fn mistakes_about_models_are_reported() {
    let dir = tempdir().expect("a directory");
    let long = format!("{}={URL}", "x".repeat(129));
    let bad = [
        "gpt=",
        "gpt=models.example/v1",
        "gpt=ftp://models.example/v1",
        "gpt=https://user:canary@models.example/v1",
        "gpt=https://models.example/v1?key=canary",
        "=https://models.example/v1",
        "a b=https://models.example/v1",
        "agent/x=https://models.example/v1",
        &long,
        "gpt=https://models.example/v1,weight=1001",
        "gpt=https://models.example/v1,weight=-1",
        "gpt=https://models.example/v1,weight=much",
        "gpt=https://models.example/v1,calls=0",
        "gpt=https://models.example/v1,key_header=cookie",
        "gpt=https://models.example/v1,retry_reused=perhaps",
        "gpt=https://models.example/v1,first_byte=long",
        "gpt=https://models.example/v1,wait=1s",
        "gpt=https://models.example/v1,name=agent/x",
        "gpt=https://models.example/v1,fallback=unknown",
    ];
    for model in bad {
        let checked = check(dir.path(), &["--model", model], &[]).await;
        assert_eq!(checked.0, Some(64), "{model}: {}", checked.1);
        assert!(checked.1.contains("model"), "{model}: {}", checked.1);
        assert!(!checked.1.contains("canary"), "{}", checked.1);
    }
    let model = format!("gpt={URL}");
    let twice = check(dir.path(), &["--model", &model, "--model", &model], &[]).await;
    assert_eq!(twice.0, Some(64), "{}", twice.1);
}

/// Covers: PR-14.
#[tokio::test]
async fn mistakes_in_the_file_are_reported_with_their_places() {
    let dir = tempdir().expect("a directory");
    let file = "[models.gpt]\nurl = \"https://models.example/v1\"\nwieght = 2\n\
        [models.other]\nname = \"x\"\n\
        [models.third]\nurl = \"https://models.example/v1\"\nweight = 5000\n";
    std::fs::write(dir.path().join("bad.toml"), file).expect("a file");
    let checked = run(dir.path(), &["check-config", "--json", "--config", "bad.toml"], &[]).await;
    assert_eq!(checked.code, Some(64), "{checked:?}");
    let report = checked.json();
    let mistakes = report["mistakes"].as_array().expect("mistakes");
    let at = |line: &str, key: &str| {
        let found = mistakes.iter().any(|mistake| {
            mistake["place"].as_str().is_some_and(|place| place.starts_with(&format!("bad.toml:{line}")))
                && mistake["key"].as_str().is_some_and(|name| name.starts_with(key))
        });
        assert!(found, "{line} {key}: {report}");
    };
    at("3:", "models.gpt.wieght");
    at("4:", "models.other");
    at("8:", "models.third.weight");
}

/// Covers: PR-1, PR-9.
#[tokio::test]
async fn missing_key_of_a_provider_is_reported() {
    let dir = tempdir().expect("a directory");
    let by_file = format!("gpt={URL},api_key_file={}", dir.path().join("none").display());
    let both = format!("gpt={URL},api_key_env=A,api_key_file=b");
    for model in [format!("gpt={URL},api_key_env=TESTS_NOT_SET"), by_file, both] {
        let checked = check(dir.path(), &["--model", &model], &[]).await;
        assert_eq!(checked.0, Some(64), "{model}: {}", checked.1);
    }
}

/// Covers: PR-14.
#[tokio::test]
async fn stronger_source_replaces_a_model_whole() {
    let strong = ScriptedUpstream::always(Answer::json(200, Route::Chat.answer())).await;
    let weak = ScriptedUpstream::always(Answer::json(200, Route::Chat.answer())).await;
    let dir = tempdir().expect("a directory");
    let file = format!(
        "[models.gpt]\nurl = \"{}\"\nupstream_model = \"weak\"\n[models.mid]\nurl = \"{}\"\n[models.low]\nurl = \"{}\"\n",
        weak.url(),
        weak.url(),
        weak.url()
    );
    std::fs::write(dir.path().join("turnway.toml"), file).expect("a file");
    let environment = flag("gpt", &weak, "upstream_model=weak");
    let url = environment.split_once('=').expect("an id").1.to_owned();
    let mid = format!("{},upstream_model=from-environment", strong.url());
    let variables = [("TURNWAY_MODELS_gpt", url.as_str()), ("TURNWAY_MODELS_mid", mid.as_str())];
    let node = node_with_environment(&dir, &variables, &["--model", &flag("gpt", &strong, "")]).await;
    let caller = Caller::new(&node);
    for (name, upstream, sent) in [("gpt", &strong, "gpt"), ("mid", &strong, "from-environment"), ("low", &weak, "low")]
    {
        assert_eq!(caller.post(Route::Chat.path(), Route::Chat.request(name, false)).await.status, 200, "{name}");
        assert_eq!(upstream.next().await.request.json()["model"], sent, "{name}");
    }
}

/// Covers: PR-14: a node without models answers as before.
#[tokio::test]
async fn node_without_models_knows_none() {
    let dir = tempdir().expect("a directory");
    let node = Node::start(dir.path(), &["--agent", "echo=builtin:echo"]).await;
    let caller = Caller::new(&node);
    for (route, stream) in Route::modes() {
        let answer = caller.post(route.path(), route.request("gpt", stream)).await;
        route.must_be(&answer, 404, "model_not_found");
    }
    let list = caller.get("/v1/models").await.json();
    let models = list["data"].as_array().expect("data");
    assert!(models.iter().all(|model| model["id"].as_str().is_some_and(|id| id.starts_with("agent/"))), "{list}");
    let turn = r#"{"model":"agent/echo","messages":[{"role":"user","content":"hello"}]}"#;
    let answer = caller.post(Route::Chat.path(), turn).await;
    assert_eq!(answer.json()["choices"][0]["message"]["content"], "hello");
}
