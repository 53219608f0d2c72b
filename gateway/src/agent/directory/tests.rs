//! Valid and invalid agent configurations.
use super::*;
use crate::config::AGENT_SETTINGS;
use std::time::Duration;
use turnway_core::id::{QualifiedRun, RunId, TenantId};
use turnway_core::protocol::pattern::Pattern;

/// Covers: MP-D15, MP-E1.
#[test]
fn agent_flag_sets_the_named_settings() {
    let spec = parse_agent(
        "a=http://h:9/base/,cancel=true,silence=30s,on_owner_loss=fail,run=1h,input_ack=250ms,cancel_ack=2m,handover=90s,\
         events=process.*|system.>",
    )
    .expect("a good agent");
    assert_eq!(spec.id.as_str(), "a");
    assert!(spec.cancel && !spec.policy.steer);
    let policy = AgentPolicy {
        on_owner_loss: OnOwnerLoss::Fail,
        input_ack: Duration::from_millis(250),
        silence: Duration::from_secs(30),
        run: Duration::from_secs(3600),
        cancel_ack: Duration::from_secs(120),
        handover: Duration::from_secs(90),
        steer: false,
        events: ["process.*", "system.>"].map(|text| Pattern::parse(text).expect("a pattern")).into(),
        is_local: false,
        auto_joins: false,
    };
    assert_eq!(spec.policy, policy);
    let Endpoint::Http(http) = spec.endpoint else { panic!("an http agent") };
    assert_eq!(http.invoke, "http://h:9/base/invoke");
    assert_eq!(http.cancel, "http://h:9/base/cancel");
    assert_eq!(http.health, "http://h:9/base/health");
}

/// An agent that does not notice the end of its connection needs an explicit cancel request.
#[test]
fn resumable_agent_needs_cancel_requests() {
    let spec = parse_agent("a=http://h:9/base/,on_owner_loss=resume").expect("a good agent");
    assert_eq!(spec.policy.on_owner_loss, OnOwnerLoss::Resume);
    assert!(spec.cancel && spec.profile().resume && spec.profile().cancel);
    let Endpoint::Http(http) = spec.endpoint else { panic!("an http agent") };
    let run = format!("s1.{}", "a".repeat(26));
    let run_id = RunId::parse(&run).expect("a name");
    for (tenant, prefix) in [("default", ""), ("acme", "acme~")] {
        let run = QualifiedRun { tenant: TenantId::parse(tenant).expect("a name"), run_id: run_id.clone() };
        let url = format!("http://h:9/base/runs/{prefix}{run_id}/events");
        assert_eq!(http.events(&run).expect("a URL"), url.as_str());
    }
}

#[test]
fn builtin_agent_may_be_retried() {
    let spec = parse_agent("e=builtin:echo").expect("a good agent");
    assert_eq!(spec.endpoint, Endpoint::Builtin(BuiltinAgent::Echo));
    assert_eq!(spec.policy.on_owner_loss, OnOwnerLoss::Retry);
}

#[test]
fn each_invalid_agent_setting_is_reported() {
    for (text, key, said) in [
        ("nonsense", "", "ID=URL"),
        ("a b=http://h", "agents", "\"a b\""),
        ("a=ftp://h", "agents.a.url", "http:// or https://"),
        ("a=http://", "agents.a.url", "not a URL"),
        ("a=/x", "agents.a.url", "http://"),
        ("a=http://u:p@h/", "agents.a.url", "user"),
        ("a=http://h/?q=1", "agents.a.url", "query"),
        ("a=builtin:nobody", "agents.a.url", "builtin:echo"),
        ("a=http://h,colour=red", "agents.a.colour", "unknown key; valid keys are url, on_owner_loss, "),
        ("a=http://h,cancle=true", "agents.a.cancle", "did you mean \"cancel\"?"),
        ("a=http://h,resume=true", "agents.a.resume", "unknown key"),
        ("a=http://h,on_owner_loss=maybe", "agents.a.on_owner_loss", "fail or resume"),
        ("a=builtin:echo,on_owner_loss=resume", "agents.a.on_owner_loss", "does not survive its node"),
        ("a=http://h,on_owner_loss=resume,cancel=false", "agents.a.cancel", "does not cancel the run"),
        ("a=http://h,silence=1s,silence=2s", "agents.a.silence", "given twice"),
        ("a=http://h,silence=fast", "agents.a.silence", "not \"fast\""),
        ("a=http://h,run=0s", "agents.a.run", "a wait"),
        ("a=http://h,run=25h", "agents.a.run", "a wait"),
        ("a=http://h,run=99999999999999999999h", "agents.a.run", "a wait"),
        ("a=http://h,events=", "agents.a.events", "patterns of fact types"),
        ("a=http://h,events=run.>.x", "agents.a.events", "patterns of fact types"),
        ("a=builtin:echo,events=>", "agents.a.events", "does not use events"),
        ("a=model:", "agents.a.url", "model:NAME"),
        ("a=model:m,context=-1", "agents.a.context", "from 0 to 1000000"),
        ("a=model:m,context=1000001", "agents.a.context", "from 0 to 1000000"),
        ("a=model:m,max_output=0", "agents.a.max_output", "from 1 to 1000000"),
        ("a=model:m,steer=true", "agents.a.steer", "takes no input"),
        ("a=model:m,events=>", "agents.a.events", "does not use events"),
        ("a=model:m,on_owner_loss=resume", "agents.a.on_owner_loss", "does not survive its node"),
        ("a=model:m,keep_alive=1s", "agents.a.keep_alive", "pooled connections"),
        ("a=http://h,context=5", "agents.a.context", "model:NAME"),
        ("a=http://h,max_output=5", "agents.a.max_output", "model:NAME"),
        ("a=http://h,cancel=yes", "agents.a.cancel", "true or false"),
        ("a=http://h,cancel", "agents.a", "\"cancel\" is not key=value"),
        ("a=http://h,", "agents.a", "\"\" is not key=value"),
    ] {
        let bad = parse_agent(text).expect_err(text);
        let [bad] = bad.as_slice() else { panic!("{text}: {bad:?}") };
        assert_eq!(bad.key().unwrap_or_default(), key, "{text}");
        assert!(bad.to_string().contains(said), "{text}: {bad}");
    }
    for text in ["a=http://u:hunter2@h/", "http://u:hunter2@h/?a=b", "a=http://u:1,hunter2@h/"] {
        let bad = parse_agent(text).expect_err(text);
        assert!(!format!("{bad:?}").contains("hunter2"), "{bad:?}");
    }
}

#[test]
fn all_errors_of_one_agent_are_reported() {
    let bad = parse_agent("a b=ftp://h,silence=x,colour=red,cancel").expect_err("bad");
    assert_eq!(bad.len(), 5, "{bad:?}");
}

#[test]
fn documented_agent_defaults_match_the_code() {
    let plain = AgentSpec::new("a", "http://h").expect("an agent");
    let pairs = AGENT_SETTINGS.iter().map(|setting| (setting.name, setting.default));
    let spelt = AgentSpec::parse("a", pairs.chain([("url", "http://h")])).expect("all of them known");
    assert_eq!(spelt, plain);
}

#[test]
fn model_agent_has_its_own_settings_and_defaults() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("prompt.txt");
    std::fs::write(&file, "Be brief.\n").expect("a file");
    let text = format!("gpt=model:openai/gpt-4.1,system={},context=500,max_output=64", file.display());
    let spec = parse_agent(&text).expect("a good agent");
    let Endpoint::Model(model) = &spec.endpoint else { panic!("a model") };
    assert_eq!((model.model.as_str(), model.context_tokens, model.max_output), ("openai/gpt-4.1", 500, Some(64)));
    assert_eq!(model.system.as_ref().map(|SystemPrompt(text)| text.reveal()), Some("Be brief."));
    assert_eq!((spec.policy.on_owner_loss, spec.cancel), (OnOwnerLoss::Retry, true));
    assert_eq!((spec.profile().kind, spec.profile().steer), ("model", false));
    assert!(!format!("{spec:?}").contains("brief"), "debug output shows no prompt");
    let plain = AgentSpec::new("gpt", "model:gpt").expect("a good agent");
    let Endpoint::Model(model) = &plain.endpoint else { panic!("a model") };
    assert_eq!((&model.system, model.context_tokens, model.max_output), (&None, 8000, None));
}

#[test]
fn system_prompt_must_be_a_short_utf8_file() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("prompt");
    let flag = format!("a=model:m,system={}", file.display());
    let error = || parse_agent(&flag).expect_err("bad").remove(0).to_string();
    assert!(error().contains("cannot be read: "), "{}", error());
    std::fs::write(&file, b"caf\xe9").expect("a file");
    assert!(error().ends_with("is not UTF-8"), "{}", error());
    std::fs::write(&file, "x".repeat(limits::MODEL_AGENT_SYSTEM_BYTES_MAX + 1)).expect("a file");
    assert!(error().ends_with("is longer than 65536 bytes"), "{}", error());
    std::fs::write(&file, "x".repeat(limits::MODEL_AGENT_SYSTEM_BYTES_MAX)).expect("a file");
    parse_agent(&flag).expect("a good agent");
}
