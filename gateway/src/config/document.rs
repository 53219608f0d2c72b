//! Renders the tables of settings as a complete configuration file and as the Markdown page
//! docs/configuration.md.
use super::agent::{AGENT_SETTINGS, AgentSetting};
use super::channel::{CHANNEL_SETTINGS, ChannelSetting};
use super::key::{DefaultValue, SETTINGS, Setting, ValueKind};
use super::model::{MODEL_SETTINGS, ModelSetting};
use std::fmt::Write;

/// Maximum width of a comment line in the file.
const WIDTH: usize = 100;

/// Returns a complete file with every key at its default, commented. Loading that file unchanged has no effect.
pub fn default_file() -> String {
    let mut text = String::from(
        "# Every key of Turnway's configuration with its default. `turnway config-doc` prints the documentation;\n\
         # `turnway check-config --config FILE` checks a file.\n\
         # Flags override the environment, which overrides this file. Lines that begin with `# ` and a key are\n\
         # inactive: their defaults are determined at the start.\n",
    );
    let mut section = "";
    for setting in &SETTINGS {
        let (of, name) = setting.section_and_name();
        if of != section {
            section = of;
            push_fmt(&mut text, format_args!("\n\n[{section}]"));
        }
        push_fmt(&mut text, format_args!("\n"));
        push_comment(&mut text, &setting.doc.replace('`', ""));
        let flag = setting.flag.map(|flag| format!("{flag}, ")).unwrap_or_default();
        push_comment(&mut text, &format!("{flag}{}: {}", setting.env(), setting.form));
        match setting.default {
            DefaultValue::Fixed(value) => push_fmt(&mut text, format_args!("{name} = {}\n", setting.literal(value))),
            DefaultValue::Computed { how, example } => {
                push_comment(&mut text, &format!("Default: {how}."));
                push_fmt(&mut text, format_args!("# {name} = {}\n", setting.literal(example)));
            }
        }
    }
    push_agents(&mut text);
    push_models(&mut text);
    push_channels(&mut text);
    text
}

/// Appends the keys of an agent, all commented out.
fn push_agents(text: &mut String) {
    push_fmt(text, format_args!("\n\n"));
    push_comment(text, "Agents, a table each; --agent ID=URL[,key=value…] and TURNWAY_AGENTS_<ID> say the same.");
    push_comment(text, "A wait is 250ms, 15s, 2m or 1h; at most 24h.");
    push_fmt(text, format_args!("# [agents.helper]\n# url = \"http://127.0.0.1:9000\"\n"));
    for AgentSetting { name, form, default, doc } in &AGENT_SETTINGS {
        push_key(text, name, form, default, doc);
    }
}

/// Appends the keys of an upstream of models, all commented out.
fn push_models(text: &mut String) {
    push_fmt(text, format_args!("\n\n"));
    push_comment(text, "Upstreams for calls of models, a table each; --model ID=URL[,key=value…] and");
    push_comment(text, "TURNWAY_MODELS_<ID> say the same. An id with a dot is quoted: [models.\"gpt-4.1\"].");
    push_fmt(text, format_args!("# [models.gpt]\n# url = \"https://api.openai.com/v1\"\n"));
    for ModelSetting { name, form, default, example, doc } in &MODEL_SETTINGS {
        push_key(text, name, form, example.unwrap_or(default), doc);
    }
}

/// Appends the keys of a channel, all commented out.
fn push_channels(text: &mut String) {
    push_fmt(text, format_args!("\n\n"));
    push_comment(text, "Channels that adapters connect, a table each, by the channel's name.");
    push_comment(text, "A table [channels.web], which may be empty, serves the web chat at /chat/.");
    push_fmt(text, format_args!("# [channels.rooms]\n"));
    for ChannelSetting { name, form, default, doc } in &CHANNEL_SETTINGS {
        push_key(text, name, form, default, doc);
    }
}

/// Appends one key of a table with its default, commented out.
fn push_key(text: &mut String, name: &str, form: &str, default: &str, doc: &str) {
    push_fmt(text, format_args!("#\n"));
    push_comment(text, &doc.replace('`', ""));
    let literal = match form {
        "BOOL" => default.to_owned(),
        _ => format!("{default:?}"),
    };
    push_fmt(text, format_args!("# {name} = {literal}\n"));
}

/// Returns the row of one key of a table, as Markdown.
fn key_row(name: &str, form: &str, default: &str, doc: &str) -> String {
    let [name, form, default] = [name, form, default].map(code_cell);
    format!("| {name} | {form} | {default} | {} |\n", escape_cell(doc))
}

/// Returns the page about the configuration, as Markdown.
pub fn markdown_page() -> String {
    let mut text = String::from(INTRODUCTION);
    let mut section = None;
    for setting in &SETTINGS {
        let (of, _) = setting.section_and_name();
        if section != Some(of) {
            section = Some(of);
            let title = if of.is_empty() { "Without a section".to_owned() } else { format!("`[{of}]`") };
            push_fmt(
                &mut text,
                format_args!("\n### {title}\n\n| key | flag | environment | default | |\n|---|---|---|---|---|\n"),
            );
        }
        let flag = setting.flag.map(|flag| match setting.kind {
            ValueKind::Switch => code_cell(flag),
            ValueKind::Text | ValueKind::List | ValueKind::Size => code_cell(&format!("{flag} {}", setting.form)),
        });
        let default = match setting.default {
            DefaultValue::Fixed(value) => code_cell(value),
            DefaultValue::Computed { how, .. } => how.to_owned(),
        };
        let name = code_cell(setting.name);
        let env = code_cell(&setting.env());
        let doc = escape_cell(setting.doc);
        let flag = flag.unwrap_or_default();
        push_fmt(&mut text, format_args!("| {name} | {flag} | {env} | {default} | {doc} |\n"));
    }
    text.push_str(AGENTS);
    for AgentSetting { name, form, default, doc } in &AGENT_SETTINGS {
        text.push_str(&key_row(name, form, default, doc));
    }
    text.push_str(MODELS);
    for ModelSetting { name, form, default, example: _, doc } in &MODEL_SETTINGS {
        text.push_str(&key_row(name, form, default, doc));
    }
    text.push_str(CHANNELS);
    for ChannelSetting { name, form, default, doc } in &CHANNEL_SETTINGS {
        text.push_str(&key_row(name, form, default, doc));
    }
    text.push_str(MISTAKES);
    text
}

const INTRODUCTION: &str = "\
# Configuration

<!-- Written by `turnway config-doc`; a test holds it against the binary. -->

A flag overrides the environment, the environment the file, and the file the default. The file is `./turnway.toml` if
there is one, or what `--config FILE` or `TURNWAY_CONFIG` names; `turnway default-config` prints a complete one.
Sizes are written `\"512B\"`, `\"64KiB\"`, `\"8MiB\"` or `\"2GiB\"`, waits `\"250ms\"`, `\"15s\"`, `\"2m\"` or `\"1h\"`.

## Settings
";

const AGENTS: &str = "
## Agents

Each agent is a table `[agents.ID]` with a `url` (`http://…`, `https://…`, `builtin:echo`, `builtin:counter`,
`model:NAME` for one that is a configured model, or `dial-in:` for one that opens the connection itself), or one `--agent ID=URL[,key=value…]`, or one `TURNWAY_AGENTS_<ID>=URL[,key=value…]`. Where
two sources name the same id, all of the stronger one counts and nothing of the weaker.

| key | value | default | |
|---|---|---|---|
";

const MODELS: &str = "
## Models

Each upstream for calls of models ([models.md](models.md)) is a table `[models.ID]` with a `url` (`http://…` or `https://…`, with the
version: `https://api.openai.com/v1`), or one `--model ID=URL[,key=value…]`, or one `TURNWAY_MODELS_<ID>=URL[,key=value…]`.
An id has 1 to 128 characters of `A-Z a-z 0-9 . _ - / :`; in the file it is quoted if it has a dot, a slash or a colon. Where two sources
name the same id, all of the stronger one counts and nothing of the weaker.

| key | value | default | |
|---|---|---|---|
";

const CHANNELS: &str = "
## Channels

Each channel that adapters connect (docs/protocol.md, Adapters) may have a table `[channels.NAME]` in the file, by the
name in their `hello`, such as `[channels.rooms]`. The settings hold for every tenant and account, and are the same on
every node of a fleet.

A table `[channels.web]`, which may be empty, also makes the node serve the web chat at `/chat/` (docs/chat.md). A node
with `demo` serves it in any case.

| key | value | default | |
|---|---|---|---|
";

const MISTAKES: &str = "
## Mistakes

All mistakes of all sources are told at once, also in settings that a stronger source overrules, each with
its place: `turnway.toml:3:8` (line and column), `environment TURNWAY_LISTEN_HTTP`, `flag --listen`. A key
nobody knows is a mistake. A variable that begins with `TURNWAY_` and is none of those above is a mistake where its name
is near to one of them, and else a warning in the log.
`TURNWAY_CONFIG`, and `TURNWAY_URL`, `TURNWAY_USER`, `TURNWAY_API_KEY` and `TURNWAY_ADMIN` (where and as whom the
client commands ask), are known, and what Kubernetes says of a service whose name begins with `turnway` is passed over. The
exit code is 64.

`turnway check-config` takes the flags of `serve` and says what it would say, without starting anything. With
`--json` it prints one object on stdout:

```json
{\"ok\":false,\"mistakes\":[{\"place\":\"turnway.toml:3:8\",\"key\":\"listen.http\",\"message\":\"expected …\"}],\"warnings\":[]}
```

`key` is `null` where a mistake is about no key, such as a file that is no TOML. Values are not repeated where
they may hold a secret.
";

// === impl Setting ===

impl Setting {
    /// Formats a value as the file writes it.
    fn literal(&self, value: &str) -> String {
        match self.kind {
            ValueKind::Switch => value.to_owned(),
            ValueKind::Text | ValueKind::List | ValueKind::Size => format!("{value:?}"),
        }
    }
}

fn push_fmt(text: &mut String, what: std::fmt::Arguments<'_>) {
    // Writing to a string cannot fail.
    let _ = text.write_fmt(what);
}

/// Appends text as a comment, wrapped to [`WIDTH`].
fn push_comment(text: &mut String, words: &str) {
    let mut line = String::from("#");
    for word in words.split_whitespace() {
        if line.chars().count() + 1 + word.chars().count() > WIDTH && line.len() > 1 {
            push_fmt(text, format_args!("{line}\n"));
            line = String::from("#");
        }
        line.push(' ');
        line.push_str(word);
    }
    push_fmt(text, format_args!("{line}\n"));
}

fn code_cell(text: &str) -> String {
    escape_cell(&format!("`{text}`"))
}

/// Escapes a bar, which would end the table cell.
fn escape_cell(text: &str) -> String {
    text.replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    use super::super::{Config, ConfigSources, load};
    use super::*;

    fn read(text: &str) -> Config {
        let file = Some(("default.toml".into(), text.to_owned()));
        let loaded = load(&ConfigSources { file, ..ConfigSources::default() });
        assert_eq!(loaded.mistakes, [], "{text}");
        loaded.config
    }

    #[test]
    fn default_configuration_file_changes_nothing() {
        let nothing = load(&ConfigSources::default());
        assert_eq!(nothing.mistakes, []);
        assert_eq!(read(&default_file()), nothing.config);
    }

    #[test]
    fn default_file_lists_every_key_with_valid_examples() {
        let text = default_file();
        let mut on = String::new();
        for line in text.lines() {
            let key = line.strip_prefix("# ").filter(|rest| is_setting(rest));
            on.push_str(key.unwrap_or(line));
            on.push('\n');
        }
        // Some keys are valid only with a Redis.
        let on = on.replace("embedded:./turnway-data", "rediss://h");
        let config = read(&on);
        assert_eq!(config.node_name, "edge-1");
        for setting in &SETTINGS {
            let (section, name) = setting.section_and_name();
            let from = on.find(&format!("[{section}]")).unwrap_or_default();
            assert!(on[from..].contains(&format!("\n{name} = ")), "{}", setting.name);
        }
        let names = AGENT_SETTINGS.iter().map(|setting| setting.name);
        let names = names.chain(MODEL_SETTINGS.iter().map(|setting| setting.name));
        for name in names.chain(CHANNEL_SETTINGS.iter().map(|setting| setting.name)) {
            assert!(on.contains(&format!("\n{name} = ")), "{name}");
        }
    }

    fn is_setting(line: &str) -> bool {
        let name = line.split(" = ").next().unwrap_or_default();
        let is_name = name.chars().all(|c| c.is_ascii_lowercase() || c == '_');
        ["[agents.helper]", "[models.gpt]", "[channels.rooms]"].contains(&line) || (is_name && line.contains(" = "))
    }

    #[test]
    fn default_file_has_no_overlong_line() {
        for line in default_file().lines() {
            assert!(line.chars().count() <= 110, "{line}");
        }
    }
}
