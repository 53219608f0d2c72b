//! The settings that a channel may have: their table, and the parser of their values. Called by `parse` and `document`.
use super::amount::parse_wait;
use super::mistake::{ConfigMistake, SettingLocation};
use super::nearest::did_you_mean;
use super::parse::parse_bool;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;
use turnway_core::id::ChannelName;
use turnway_core::limits;
use turnway_core::protocol::channels::{ChannelDirectory, ChannelSettings};

/// The channel whose table switches the web chat on (`/chat/`).
pub const WEB_CHANNEL: &str = "web";

/// One row of the table.
#[derive(Clone, Copy, Debug)]
pub struct ChannelSetting {
    /// Name in `[channels.NAME]`.
    pub name: &'static str,
    /// Placeholder for the value.
    pub form: &'static str,
    /// Value if the setting is absent.
    pub default: &'static str,
    pub doc: &'static str,
}

/// The table of channel settings.
pub const CHANNEL_SETTINGS: [ChannelSetting; 6] = [
    ChannelSetting {
        name: "debounce",
        form: "WAIT|off",
        default: "off",
        doc: "Messages that one person writes in a conversation within this time of each other become one turn, with the \
              texts in lines; the turn starts once the person has been quiet for this long, and at most 5 times this long \
              after the first message. Commands (a comma and a letter) and messages with anything but text start at once. \
              At most 30s.",
    },
    ChannelSetting {
        name: "fail_closed",
        form: "BOOL",
        default: "true",
        doc: "The completion of a task goes to a conversation that is bound to the task's session, or to none. `false`: \
              without such a binding it goes to the conversation of the message that led to the task.",
    },
    ChannelSetting {
        name: "farewell",
        form: "TEXT|off",
        default: "off",
        doc: "A conversation gets this text when its binding has ended because it was idle or too old, or by an unbind that \
              asks for it (`farewell`): once, after all that the session has to send there, and not if nothing can be sent \
              there any more. At most 300 characters.",
    },
    ChannelSetting {
        name: "spawn_subagent_sessions",
        form: "BOOL",
        default: "false",
        doc: "Agents may give tasks to other agents (`agent.spawn`) in turns that came from this channel. Each task has a \
              session and a new conversation of its own.",
    },
    ChannelSetting {
        name: "stale_after",
        form: "WAIT|off",
        default: "off",
        doc: "A message that is older than this when its adapter brings it, by its `platform_time` and the store's clock, is \
              not run in a conversation that nobody has bound: it is answered with `ignored` and the reason `stale`, and \
              counted. From 1s to 72h.",
    },
    ChannelSetting {
        name: "stale_after_bound",
        form: "WAIT|off",
        default: "off",
        doc: "The same in a conversation that is bound to a session.",
    },
];

/// The text of one table `[channels.NAME]` of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ChannelText {
    pub(super) name: String,
    /// Place of the table's start.
    pub(super) location: SettingLocation,
    /// Keys and values in the file's order, each with its place.
    pub(super) pairs: Vec<(String, String, SettingLocation)>,
}

/// Parses the tables of all channels; the mistakes in them are added to `mistakes`.
pub(super) fn parse_channels(texts: &[ChannelText], mistakes: &mut Vec<ConfigMistake>) -> ChannelDirectory {
    let mut channels = ChannelDirectory::default();
    for ChannelText { name, location, pairs } in texts {
        let Ok(channel) = ChannelName::parse(name) else {
            let what = "invalid channel: use 1 to 64 characters of a-z 0-9 . _ -";
            mistakes.push(ConfigMistake::for_key(format_args!("channels.{name}"), location, what));
            continue;
        };
        let mut settings = ChannelSettings::default();
        for (key, value, at) in pairs {
            if let Err(what) = set(&mut settings, key, value) {
                mistakes.push(ConfigMistake::for_key(format_args!("channels.{name}.{key}"), at, what));
            }
        }
        channels.0.insert(channel, settings);
    }
    channels
}

/// Sets one of [`CHANNEL_SETTINGS`].
fn set(settings: &mut ChannelSettings, key: &str, value: &str) -> Result<(), String> {
    match key {
        "fail_closed" => settings.falls_back = !parse_bool(value)?,
        "spawn_subagent_sessions" => settings.spawn_subagent_sessions = parse_bool(value)?,
        "farewell" => settings.farewell = parse_farewell(value)?,
        "debounce" => {
            let range = Duration::ZERO..=limits::DEBOUNCE_MAX;
            settings.debounce = parse_period(value, range, "250ms, 1s or 30s at most")?;
        }
        "stale_after" => settings.stale_after = parse_stale_after(value)?,
        "stale_after_bound" => settings.stale_after_bound = parse_stale_after(value)?,
        _ => {
            let known = || CHANNEL_SETTINGS.iter().map(|setting| setting.name);
            let names = known().collect::<Vec<_>>().join(", ");
            return Err(format!("unknown key{}; valid keys are {names}", did_you_mean(key, known())));
        }
    }
    Ok(())
}

/// Parses the text of a farewell; `off` and a blank text are none.
fn parse_farewell(value: &str) -> Result<Option<Arc<str>>, String> {
    let text = value.trim();
    if text.chars().count() > limits::FAREWELL_CHARACTERS_MAX || text.contains(|c: char| c.is_control() && c != '\n') {
        return Err(format!("expected off, or a text of at most {} characters", limits::FAREWELL_CHARACTERS_MAX));
    }
    Ok(Some(text).filter(|text| !text.is_empty() && *text != "off").map(Arc::from))
}

fn parse_stale_after(value: &str) -> Result<Option<Duration>, String> {
    parse_period(value, Duration::from_secs(1)..=limits::STALE_AFTER_MAX, "30s, 10m or 2h, from 1s to 72h")
}

/// Parses a period; `off` and 0 are none.
fn parse_period(value: &str, range: RangeInclusive<Duration>, examples: &str) -> Result<Option<Duration>, String> {
    let period = if value == "off" { Some(Duration::ZERO) } else { parse_wait(value) };
    let period = period.filter(|period| period.is_zero() || range.contains(period));
    let period = period.ok_or_else(|| format!("expected off, or a wait such as {examples}"))?;
    Ok(Some(period).filter(|period| !period.is_zero()))
}

#[cfg(test)]
mod tests {
    use super::super::{ConfigSources, LoadedConfig, load};
    use super::*;

    fn read(file: &str) -> LoadedConfig {
        load(&ConfigSources { file: Some(("t.toml".into(), file.to_owned())), ..ConfigSources::default() })
    }

    /// Covers: BD-L2.
    #[test]
    fn farewell_is_a_short_text_or_off() {
        let of = |value: &str| {
            let loaded = read(&format!("[channels.rooms]\nfarewell = \"{value}\"\n"));
            let rooms = ChannelName::parse("rooms").expect("a name");
            (loaded.mistakes.len(), loaded.config.channels.settings(&rooms).farewell)
        };
        assert_eq!(of("See you."), (0, Some("See you.".into())));
        assert_eq!((of("off"), of(" ")), ((0, None), (0, None)));
        assert_eq!(of(&"x".repeat(limits::FAREWELL_CHARACTERS_MAX)).0, 0);
        assert_eq!(of(&"x".repeat(limits::FAREWELL_CHARACTERS_MAX + 1)).0, 1);
        assert_eq!(of("a\\u0007b").0, 1);
    }

    /// Covers: BD-M8.
    #[test]
    fn channels_are_read_from_the_file() {
        let loaded = read("[channels.rooms]\ndebounce = \"1s\"\n[channels.\"a.b\"]\ndebounce = \"0s\"\n");
        assert_eq!(loaded.mistakes, []);
        let of = |name: &str| loaded.config.channels.settings(&ChannelName::parse(name).expect("a name")).debounce;
        assert_eq!([of("rooms"), of("a.b"), of("other")], [Some(Duration::from_secs(1)), None, None]);
    }

    /// Covers: BR-25.
    #[test]
    fn stale_messages_are_ignored_by_configuration_only() {
        let loaded = read("[channels.rooms]\nstale_after = \"10m\"\n[channels.other]\nstale_after_bound = \"72h\"\n");
        assert_eq!(loaded.mistakes, []);
        let of = |name: &str| loaded.config.channels.settings(&ChannelName::parse(name).expect("a name"));
        assert_eq!((of("rooms").stale_after, of("rooms").stale_after_bound), (Some(Duration::from_secs(600)), None));
        assert_eq!((of("other").stale_after, of("other").stale_after_bound), (None, Some(limits::STALE_AFTER_MAX)));
        for wrong in ["999ms", "73h", "3d", "-1s", ""] {
            assert_eq!(read(&format!("[channels.rooms]\nstale_after = \"{wrong}\"\n")).mistakes.len(), 1, "{wrong}");
        }
    }

    #[test]
    fn mistakes_in_channels_are_told_with_their_places() {
        let file = "[channels]\nx = 1\n[channels.Rooms]\n[channels.rooms]\ndebounce = \"31s\"\ndebounced = \"1s\"\n";
        let mut mistakes = read(file).mistakes;
        mistakes.sort();
        let mistakes: Vec<String> = mistakes.iter().map(ToString::to_string).collect();
        let starts = [
            "t.toml:2:5: channels.x: expected a table [channels.x], not a number",
            "t.toml:3:11: channels.Rooms: invalid channel",
            "t.toml:5:12: channels.rooms.debounce: expected off, or a wait such as",
            "t.toml:6:13: channels.rooms.debounced: unknown key; did you mean \"debounce\"?; valid keys are debounce, fail",
        ];
        assert_eq!(mistakes.len(), starts.len(), "{mistakes:#?}");
        for (mistake, start) in mistakes.iter().zip(starts) {
            assert!(mistake.starts_with(start), "{mistake}\n{start}");
        }
    }
}
