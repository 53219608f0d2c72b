//! Stages: their order, the priority of plugins, and defaults without a plugin's answer.
use crate::scripted::{Behavior, CallLog, RecordingLifespan, ScriptedPlugin};
use crate::{inbound, plain};
use serde_json::json;
use std::sync::Arc;
use turnway_pipeline::{BuiltinPlugin, Inbound, MessageEnvelope, Pipeline, Prompt};

/// Returns a pipeline with two scripted plugins after the built-in one.
fn two(change: impl FnOnce(&mut ScriptedPlugin, &mut ScriptedPlugin)) -> (Pipeline, CallLog) {
    let log = CallLog::default();
    let mut first = ScriptedPlugin::new("first", &log);
    let mut second = ScriptedPlugin::new("second", &log);
    first.model = Behavior::Say("fine");
    change(&mut first, &mut second);
    (plain().with(first).with(second), log)
}

/// Covers: TP-G1, TP-G3, TP-N14, TP-O4, LN-TP12.
#[tokio::test]
async fn later_plugins_are_called_first_in_each_stage() {
    let (pipeline, log) = two(|first, _| first.state = Behavior::Say("x"));
    let outcome = pipeline.process(inbound("hi")).await.expect("it is answered");
    assert_eq!((outcome.turn.output.as_str(), outcome.outbound.len()), ("fine", 1));
    let stages: Vec<String> = log.lines().into_iter().filter(|line| line.contains("_")).collect();
    assert_eq!(
        stages,
        [
            "resolve_session second",
            "resolve_session first",
            "load_state second",
            "load_state first",
            "build_prompt second",
            "build_prompt first",
            "run_model second",
            "run_model_stream second",
            "run_model first",
            "save_state second",
            "save_state first",
            "render_outbound second",
            "render_outbound first",
            "dispatch_outbound second",
            "dispatch_outbound first",
        ]
    );
}

/// Covers: TP-R1, TP-R2, TP-R3, TP-R4, TP-N2, RX-11.
#[tokio::test]
async fn session_is_resolved_or_built_from_channel_and_chat() {
    let (pipeline, log) = two(|first, second| {
        (first.session, second.session) = (Behavior::Say("of-first"), Behavior::Say("of-second"));
    });
    let turn = pipeline.process(inbound("hi")).await.expect("it is answered").turn;
    assert_eq!(turn.session_id, "of-second");
    assert_eq!(turn.inbound.envelope.session_id.as_deref(), Some("of-second"), "it is written back");
    assert_eq!(log.of("resolve_session").len(), 1, "nobody else is asked");
    // No plugin answers, and the built-in one is missing too.
    let model = ScriptedPlugin { model: Behavior::Say("fine"), ..ScriptedPlugin::new("model", &log) };
    let bare = Pipeline::new("/").with(model);
    let of =
        async |envelope: MessageEnvelope| bare.process(envelope.into()).await.expect("it is answered").turn.session_id;
    assert_eq!(of(inbound("hi").envelope).await, "cli:7");
    assert_eq!(of(MessageEnvelope::from_text("hi")).await, "default:default");
    let two_accounts = MessageEnvelope { account: Some("office".to_owned()), ..inbound("hi").envelope };
    assert_eq!(of(two_accounts).await, "default/office/cli:7");
    let named = MessageEnvelope { session_id: Some("s1".to_owned()), ..inbound("hi").envelope };
    let (known, _) = two(|_, _| {});
    assert_eq!(known.process(named.into()).await.expect("it is answered").turn.session_id, "s1");
}

/// Covers: LN-TP2, LN-TP35.
#[tokio::test]
async fn resolved_session_replaces_the_named_one() {
    let (pipeline, log) = two(|_, second| second.session = Behavior::Say("found"));
    let named = MessageEnvelope { session_id: Some("named".to_owned()), ..inbound("hi").envelope };
    let turn = pipeline.process(named.into()).await.expect("it is answered").turn;
    assert_eq!(log.of("admits"), ["admits to found", "admits to found"]);
    assert_eq!(turn.session_id, "found");
    assert_eq!(turn.inbound.envelope.session_id.as_deref(), Some("found"), "it is written back");
}

/// Covers: TP-L1, TP-L2, TP-L3, TP-L4, TP-L5, TP-N3.
#[tokio::test]
async fn later_plugin_wins_conflicting_state() {
    let (pipeline, _) = two(|first, second| {
        (first.state, second.state) = (Behavior::Say("shared"), Behavior::Say("shared"));
    });
    let state = pipeline.process(inbound("hi")).await.expect("it is answered").turn.state;
    assert_eq!(state["shared"], "second");
    assert_eq!((&state["first"], &state["second"]), (&json!(true), &json!(true)));
    assert_eq!(state["_runtime_workspace"], "/srv/agent");
    assert_eq!((&state["session_id"], state.contains_key("_runtime_agent")), (&json!("cli:7"), true));
    let (pipeline, _) = two(|first, _| first.state = Behavior::Say("_runtime_workspace"));
    let state = pipeline.process(inbound("hi")).await.expect("it is answered").turn.state;
    assert_eq!(state["_runtime_workspace"], "first", "what the kernel knows is there first");
}

/// Covers: TP-B1, TP-B2, TP-B3, TP-B4.
#[tokio::test]
async fn empty_prompt_falls_back_to_the_message_text() {
    for (of_second, of_first, asked) in [
        (Behavior::Say("of second"), Behavior::Say("of first"), "of second"),
        (Behavior::Pass, Behavior::Say("of first"), "of first"),
        (Behavior::Say(""), Behavior::Say("of first"), "hi"),
        (Behavior::Pass, Behavior::Pass, "hi"),
    ] {
        let (pipeline, log) = two(|first, second| (first.prompt, second.prompt) = (of_first, of_second));
        pipeline.process(inbound("hi")).await.expect("it is answered");
        assert_eq!(log.of("asked").last(), Some(&format!("asked {:?}", Prompt::Text(asked.to_owned()))));
        let first_was_asked = log.lines().contains(&"build_prompt first".to_owned());
        assert_eq!(first_was_asked, of_second == Behavior::Pass);
    }
}

/// Covers: TP-O1, TP-O2, TP-O3, TP-O5, TP-N9, LN-TP19.
#[tokio::test]
async fn rendered_messages_are_collected_or_default_to_output() {
    let (pipeline, log) = two(|first, second| {
        (first.render, second.render) = (Behavior::Say("one"), Behavior::Say("two"));
        second.dispatch = Behavior::Say("done");
    });
    let outcome = pipeline.process(inbound("hi")).await.expect("it is answered");
    let sent: Vec<&str> = outcome.outbound.iter().map(|envelope| envelope.content.as_str()).collect();
    assert_eq!((sent, outcome.delivered), (vec!["two", "one"], 2), "in the order of asking");
    assert_eq!(log.of("sent"), ["sent two", "sent two", "sent one", "sent one"]);
    // With and without the built-in plugin.
    for pipeline in [plain(), Pipeline::new("/")] {
        let model =
            ScriptedPlugin { model: Behavior::Say("fine"), ..ScriptedPlugin::new("model", &CallLog::default()) };
        let outcome = pipeline.with(model).process(inbound("hi")).await.expect("it is answered");
        let [message] = &outcome.outbound[..] else { panic!("{outcome:?}") };
        assert_eq!((message.content.as_str(), message.channel.as_deref()), ("fine", Some("cli")));
        assert_eq!((message.chat_id.as_deref(), message.fallback), (Some("7"), false));
    }
}

/// Covers: TP-S4, TP-N3, TP-N8.
#[tokio::test]
async fn lifespan_is_open_during_the_turn() {
    let (pipeline, log) = two(|_, _| {});
    let message = Inbound { lifespan: Some(Arc::new(RecordingLifespan(log.clone()))), ..inbound("hi") };
    pipeline.process(message).await.expect("it is answered");
    let lines = log.lines();
    let place = |line: &str| lines.iter().position(|known| known == line).expect("it was noted");
    assert!(place("opened") < place("build_prompt second"));
    assert!(place("run_model first") < place("closed None"));
}

/// Covers: TP-N1, TP-N4, TP-N5, TP-N6, TP-N11, LN-TP27.
#[tokio::test]
async fn builtin_plugin_fills_every_stage() {
    let log = CallLog::default();
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::write(dir.path().join("AGENTS.md"), "Be brief.").expect("it is written");
    let builtin = BuiltinPlugin::new().with_workspace(dir.path()).with_time();
    let model = ScriptedPlugin { model: Behavior::Say("fine"), ..ScriptedPlugin::new("model", &log) };
    let pipeline = Pipeline::new("/").with(builtin.clone()).with(model);
    let mut message = inbound("hi");
    message.envelope.context.insert("weather".to_owned(), "rain".into());
    let turn = pipeline.process(message.clone()).await.expect("it is answered").turn;
    let told = turn.system_prompt.expect("a system prompt");
    assert!(told.starts_with("You are") && told.ends_with("\n\nBe brief."), "{told}");
    let asked = log.of("asked").pop().expect("it was asked");
    assert!(asked.contains("T") && asked.contains("Z]\\n[weather: \\\"rain\\\"]\\nhi"), "{asked}");
    message.envelope.media.push(json!({"type": "image_url", "image_url": {"url": "data:,"}}));
    pipeline.process(message).await.expect("it is answered");
    let asked = log.of("asked").pop().expect("it was asked");
    assert!(asked.starts_with("asked Parts(") && asked.contains("image_url"), "{asked}");
    // Commands are answered before any model is called.
    let alone = Pipeline::new("/").with(builtin);
    let said = async |text: &str| alone.process(inbound(text)).await.expect("it is answered").turn.output;
    assert!(said(",help").await.contains(",status"));
    assert!(said(",status").await.starts_with("session cli:7\n"));
    assert!(said(",nonsense").await.starts_with("unknown command: ,nonsense"));
    assert_eq!(said(", and so on").await, "", "no command, and there is no model");
}

/// Covers: TP-N11.
#[tokio::test]
async fn long_workspace_file_is_cut_between_characters() {
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::write(dir.path().join("AGENTS.md"), "世".repeat(30_000)).expect("it is written");
    let model = ScriptedPlugin { model: Behavior::Say("fine"), ..ScriptedPlugin::new("model", &CallLog::default()) };
    let pipeline = Pipeline::new("/").with(BuiltinPlugin::new().with_workspace(dir.path())).with(model);
    let turn = pipeline.process(inbound("hi")).await.expect("it is answered").turn;
    let told = turn.system_prompt.expect("a system prompt");
    assert!(told.ends_with("世") && !told.contains('\u{FFFD}'));
}

/// Covers: TP-G2, TP-N12, TP-N14.
#[tokio::test]
async fn turn_is_recorded_on_the_sessions_tape() {
    let dir = tempfile::tempdir().expect("a folder");
    let log = CallLog::default();
    let model = ScriptedPlugin { model: Behavior::Say("fine"), ..ScriptedPlugin::new("model", &log) };
    let rude = ScriptedPlugin { admit: Behavior::Say("not today"), ..ScriptedPlugin::new("rude", &log) };
    let tapes = dir.path().join("tapes");
    let pipeline = Pipeline::new("/").with(BuiltinPlugin::new().with_tapes(&tapes)).with(model);
    pipeline.process(inbound("hi")).await.expect("it is answered");
    pipeline.clone().with(rude).process(inbound("ho")).await.expect_err("it is refused");
    // A session id that would lead out of the folder, and one that is too long for a file name.
    let named =
        |id: String| Inbound::from(MessageEnvelope { session_id: Some(id), ..MessageEnvelope::from_text("hi") });
    pipeline.process(named("../x".to_owned())).await.expect("it is answered");
    let failure = pipeline.process(named("x".repeat(241))).await.expect_err("it cannot be kept");
    assert_eq!((failure.code(), failure.location().as_str()), ("tape", "save_state: builtin"));
    let mut names: Vec<String> = std::fs::read_dir(&tapes)
        .expect("the folder")
        .map(|file| file.expect("a file").file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    assert_eq!(names, ["%2e%2e%2fx.jsonl", "cli%3a7.jsonl"]);
    let tape = std::fs::read_to_string(tapes.join("cli%3a7.jsonl")).expect("a tape");
    let lines: Vec<serde_json::Value> = tape.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!((lines.len(), &lines[0]["message"]["content"]), (4, &json!("hi")));
    assert_eq!(lines[1], json!({"entry": "output", "text": "fine", "failure": null}));
    assert_eq!(lines[3], json!({"entry": "output", "text": "", "failure": "blocked"}));
}
