//! Tests of `turnway tool-runner`: the real binary with real processes, against a scripted gateway, or a real one
//! in `gateway` and `live`.
mod gateway;
mod lists;
mod live;
mod restarts;
mod secret;

use serde_json::{Value, json};
use std::path::Path;
use tempfile::TempDir;
use turnway_tests::real::scripted_gateway::{Runner, RunnerSession, ScriptedGateway, new_id, processes_of};

/// Allow list of these tests. `{dir}` is a directory that a test may write to.
const LIST: &str = r#"
[programs.echo]
run = ["/bin/echo", "-n", "{text}"]
args.text = { pattern = "[a-z ;$()]*" }

[programs.tick]
run = ["/bin/sh", "-c", "echo x >> {dir}/ticks; cat {dir}/ticks"]

[programs.sleep]
run = ["/bin/sleep", "{seconds}"]
args.seconds = { pattern = "[0-9]{1,4}", default = "1000" }
time_limit = "20m"
parallel = 3

[programs.fail]
run = ["/bin/sh", "-c", "echo it broke >&2; exit 3"]

[programs.stubborn]
run = ["/bin/sh", "-c", "trap '' TERM; echo up; while :; do /bin/sleep 1; done"]

[programs.family]
run = ["/bin/sh", "-c", "/bin/sleep 1000 & setsid /bin/sleep 1000 & echo up; wait"]

[programs.leaver]
run = ["/bin/sh", "-c", "/bin/sleep 1000 & setsid /bin/sleep 1000 & echo gone"]

[programs.flood]
run = ["/bin/sh", "-c", "yes | head -c 20000000; echo the end >&2"]

[programs.bytes]
run = ["/bin/sh", "-c", "printf '\\377\\000a'"]

[programs.env]
run = ["/usr/bin/env"]
env = { GREETING = "hello" }
pass_env = ["PATH"]
cwd = "/tmp"
"#;

fn list(dir: &Path) -> String {
    LIST.replace("{dir}", &dir.display().to_string())
}

/// Starts a scripted gateway and a runner that is connected to it; returns the runner's state directory as well.
async fn connected_runner() -> (ScriptedGateway, RunnerSession, Runner, TempDir) {
    let asking = ScriptedGateway::listen().await;
    let dir = tempfile::tempdir().expect("a directory");
    let mut runner = Runner::launch(dir.path(), asking.address(), &list(dir.path()), &[]);
    let serving = asking.accept().await;
    runner.ready().await;
    (asking, serving, runner, dir)
}

/// Covers: EV-R3, EV-T5, LN-EV7, S-38.
#[tokio::test]
async fn program_runs_and_its_output_and_result_are_reported() {
    let (_asking, mut gateway, _runner, dir) = connected_runner().await;
    assert_eq!((&gateway.hello["role"], &gateway.hello["runner_id"]), (&json!("tool_runner"), &json!("r1")));
    assert_eq!(gateway.hello["tools"].as_array().map(Vec::len), Some(4));
    let id = gateway.spawn("echo", json!({"text": "hi; $(ls)"})).await;
    assert!(gateway.until("invoked", &id).await["pid"].as_u64().is_some_and(|pid| pid > 1));
    let chunk = gateway.until("chunk", &id).await;
    // The argument was not expanded by a shell.
    assert_eq!(
        (&chunk["data"], &chunk["stream"], &chunk["offset"]),
        (&json!("hi; $(ls)"), &json!("stdout"), &json!(0))
    );
    let result = gateway.result(&id).await;
    assert_eq!((&result["ok"], &result["result"]["exit_code"]), (&json!(true), &json!(0)), "{result}");
    assert_eq!(result["result"]["stdout"], "hi; $(ls)");
    let id = gateway.spawn("fail", json!({})).await;
    let result = gateway.result(&id).await;
    assert_eq!((&result["ok"], &result["error"]["code"]), (&json!(false), &json!("exit_code")));
    assert_eq!((&result["result"]["exit_code"], &result["result"]["stderr"]), (&json!(3), &json!("it broke\n")));
    let id = gateway.spawn("bytes", json!({})).await;
    let chunk = gateway.until("chunk", &id).await;
    assert_eq!((&chunk["encoding"], &chunk["data"]), (&json!("base64"), &json!("/wBh")));
    let id = gateway.spawn("env", json!({})).await;
    let result = gateway.result(&id).await;
    let mut names: Vec<&str> = result["result"]["stdout"].as_str().expect("a text").lines().collect();
    names.retain(|line| !line.starts_with("PATH=") && *line != format!("TURNWAY_ACTION_ID={id}"));
    assert_eq!(names, ["GREETING=hello"]);
    let log = std::fs::read_to_string(dir.path().join("runner.log")).expect("a log");
    assert!(log.contains(&id) && !log.contains("$(ls)") && !log.contains("broke"), "{log}");
}

/// Covers: EV-N5, EV-N6.
#[tokio::test]
async fn repeated_action_runs_once() {
    let (asking, mut gateway, _runner, _dir) = connected_runner().await;
    let id = gateway.spawn("tick", json!({})).await;
    let first = gateway.result(&id).await;
    let again = json!({"program": "tick"});
    gateway.execute(&id, "s1", "process.spawn", again.clone(), 60_000).await;
    let second = gateway.result(&id).await;
    assert_eq!((&first["result"], &first["result"]["stdout"]), (&second["result"], &json!("x\n")));
    gateway.close(1000).await;
    let mut gateway = asking.accept().await;
    gateway.execute(&id, "s1", "process.spawn", again, 60_000).await;
    assert_eq!(gateway.result(&id).await["result"], first["result"]);
    let other = gateway.spawn("tick", json!({})).await;
    assert_eq!(gateway.result(&other).await["result"]["stdout"], "x\nx\n");
}

#[tokio::test]
async fn program_outside_the_allow_list_is_refused() {
    let (_asking, mut gateway, _runner, _dir) = connected_runner().await;
    let mut check = async |tool: &str, args: Value, code: &str, why: &str| {
        let id = gateway.ask(tool, args.clone()).await;
        let result = gateway.result(&id).await;
        assert_eq!(result["error"]["code"], code, "{args}: {result}");
        assert!(result["error"]["message"].as_str().is_some_and(|text| text.contains(why)), "{args}: {result}");
    };
    let spawn = "process.spawn";
    check(spawn, json!({"program": "/bin/rm"}), "forbidden", "allowed programs: bytes, echo").await;
    check(spawn, json!({"program": "sleep", "args": {"seconds": "1d"}}), "forbidden", "seconds").await;
    check(spawn, json!({"program": "sleep", "args": {"seconds": "-1"}}), "forbidden", "seconds").await;
    check(spawn, json!({"program": "sleep", "args": {"signal": "9"}}), "forbidden", "unknown argument").await;
    check(spawn, json!({"program": "echo"}), "bad_args", "\"text\" is missing").await;
    check(spawn, json!({"argv": ["ls"]}), "bad_args", "argv").await;
    check(spawn, json!("ls"), "bad_args", "an object").await;
    check("sh.run", json!({}), "unknown_tool", "unknown tool").await;
    check("process.kill", json!({"process_id": "1"}), "unknown_process", "no such process").await;
}

/// Covers: EV-T10, EV-T11, EV-T13, EV-T14, EV-N2, EV-N3, LN-EV9, LN-EV10.
#[tokio::test]
async fn killed_process_takes_its_descendants_along() {
    let (_asking, mut gateway, _runner, _dir) = connected_runner().await;
    let family = gateway.spawn("family", json!({})).await;
    gateway.until("chunk", &family).await;
    let sleep = gateway.spawn("sleep", json!({})).await;
    gateway.until("invoked", &sleep).await;
    let about = json!({"process_id": family});
    let status = gateway.ask("process.status", about.clone()).await;
    let status = gateway.result(&status).await["result"].clone();
    assert_eq!(
        (&status["state"], &status["program"], &status["stdout"]),
        (&json!("running"), &json!("family"), &json!("up\n"))
    );
    let all = gateway.ask("process.status", json!({})).await;
    assert_eq!(gateway.result(&all).await["result"]["running"].as_array().map(Vec::len), Some(2));
    let spy = new_id();
    gateway.execute(&spy, "s2", "process.kill", about.clone(), 60_000).await;
    assert_eq!(gateway.result(&spy).await["error"]["code"], "unknown_process");
    assert_eq!(processes_of(&family), 3);
    let kill = gateway.ask("process.kill", about.clone()).await;
    assert_eq!(gateway.result(&kill).await["result"]["state"], "stopping");
    assert_eq!(gateway.result(&family).await["error"]["code"], "killed");
    assert_eq!(processes_of(&family), 0, "also those that have left its group");
    let hup = gateway.ask("process.signal", json!({"process_id": sleep, "signal": "HUP"})).await;
    assert_eq!(gateway.result(&hup).await["ok"], true);
    let ended = gateway.result(&sleep).await;
    assert_eq!((&ended["error"]["code"], &ended["result"]["signal"]), (&json!("signal"), &json!(1)));
    let leaver = gateway.spawn("leaver", json!({})).await;
    assert_eq!(gateway.result(&leaver).await["ok"], true);
    assert_eq!(processes_of(&leaver), 0, "nothing of it stays behind");
}

/// Covers: LN-EV10: it is asked to end, and five seconds later it does.
#[tokio::test]
async fn process_that_ignores_sigterm_is_killed() {
    let (_asking, mut gateway, _runner, _dir) = connected_runner().await;
    let slow = new_id();
    let unwanted = new_id();
    let args = json!({"program": "stubborn"});
    gateway.execute(&slow, "s1", "process.spawn", args.clone(), 300).await;
    gateway.until("chunk", &slow).await;
    gateway.execute(&unwanted, "s1", "process.spawn", args, 60_000).await;
    gateway.until("chunk", &unwanted).await;
    gateway.say(json!({"type": "signal", "action_id": unwanted, "signal": "KILL"})).await;
    let mut codes = Vec::new();
    let mut grace = 0;
    while codes.len() < 2 {
        let message = gateway.next().await.expect("it goes on");
        if message["type"] == "result" {
            codes.push(message["error"]["code"].as_str().expect("a code").to_owned());
            grace = message["result"]["runtime_ms"].as_u64().expect("a time");
            assert_eq!(message["result"]["signal"], 9);
        }
    }
    codes.sort();
    assert_eq!(codes, ["canceled", "tool_timeout"]);
    assert!((5000..20_000).contains(&grace), "{grace} ms");
    assert_eq!(processes_of(&slow) + processes_of(&unwanted), 0);
}

/// Covers: LN-EV7, LN-EV8, G8.
#[tokio::test]
async fn output_flood_is_throttled_and_delays_nothing() {
    let (_asking, mut gateway, _runner, _dir) = connected_runner().await;
    let flood = gateway.spawn("flood", json!({})).await;
    let mut echo = None;
    let mut carried = 0;
    let mut throttled = 0;
    let mut gaps = 0;
    let mut end = 0;
    let result = loop {
        let message = gateway.next().await.expect("it goes on");
        match message["type"].as_str().expect("a type") {
            "chunk" if message["action_id"] == flood && message["stream"] == "stdout" => {
                let data = message["data"].as_str().expect("data");
                let offset = message["offset"].as_u64().expect("a number");
                assert!(data.len() <= 16 * 1024);
                assert_eq!(message["truncated"] == true, offset != end, "what is left out is said to be");
                gaps += u64::from(offset != end);
                carried += data.len();
                end = offset + data.len() as u64;
            }
            "system" => {
                assert_eq!(
                    (&message["name"], &message["data"]["process_id"]),
                    (&json!("process.output.throttled"), &json!(flood))
                );
                throttled += 1;
                echo = Some(gateway.spawn("echo", json!({"text": "beside"})).await);
            }
            "result" if message["action_id"] == flood => break message,
            "result" => assert_eq!(
                (Some(message["action_id"].as_str().expect("a name")), &message["ok"]),
                (echo.as_deref(), &json!(true))
            ),
            _ => {}
        }
    };
    let ms = usize::try_from(result["result"]["runtime_ms"].as_u64().expect("a time")).expect("a short one");
    assert!(carried <= 256 * 1024 * (ms / 1000 + 2), "{carried} bytes in {ms} ms");
    assert!(gaps > 0 && throttled == 1 && echo.is_some(), "{gaps} gaps, said {throttled} times");
    assert_eq!(
        (&result["result"]["stdout_bytes"], &result["result"]["stderr"]),
        (&json!(20_000_000), &json!("the end\n"))
    );
    assert_eq!((end, &result["result"]["throttled"]), (20_000_000, &json!(true)));
}
