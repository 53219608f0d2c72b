//! `turnway serve`: command-line flags derived from the table of settings. Values stay text here: the
//! configuration loader parses them, so that all mistakes are reported in one place.
use crate::config::key::{DefaultValue, Setting, ValueKind};
use crate::config::{Flag, SETTINGS};
use clap::{Arg, ArgAction, ArgMatches, Args, Command, Error, FromArgMatches, value_parser};
use std::path::PathBuf;

/// Arguments of `turnway serve` and `turnway check-config`.
#[derive(Clone, Debug, Default)]
pub struct ServeArgs {
    /// Path of the configuration file, if one was named.
    pub config: Option<PathBuf>,
    /// Flags with their values as typed.
    pub flags: Vec<(Flag, String)>,
}

const AFTER_HELP: &str = "Flags override the environment (TURNWAY_<SECTION>_<KEY>), which overrides the file. `turnway \
                     default-config` prints a whole file, `turnway config-doc` its documentation.";

// === impl ServeArgs ===

impl Args for ServeArgs {
    fn augment_args(command: Command) -> Command {
        let config = Arg::new("config")
            .long("config")
            .value_name("FILE")
            .env("TURNWAY_CONFIG")
            .value_parser(value_parser!(PathBuf))
            .help("Configuration file [default: ./turnway.toml, if there is one]");
        let agent = Arg::new("agent")
            .long("agent")
            .value_name("ID=URL[,key=value…]")
            .action(ArgAction::Append)
            .help("An agent; may be repeated");
        let model = Arg::new("model")
            .long("model")
            .value_name("ID=URL[,key=value…]")
            .action(ArgAction::Append)
            .help("An upstream for calls of models, such as gpt-4o=https://api.openai.com/v1,api_key_env=OPENAI_API_KEY; may be repeated");
        // Flags of the table are collected even if they are given twice; the loader reports that with the other
        // mistakes.
        let flags = SETTINGS.iter().filter_map(|setting| Some(flag(setting, setting.flag?)));
        command.arg(config).args(flags).arg(agent).arg(model).after_help(AFTER_HELP)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for ServeArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let mut args = Self { config: matches.get_one::<PathBuf>("config").cloned(), flags: Vec::new() };
        let given = |name| matches.get_many::<String>(name).unwrap_or_default().cloned();
        for setting in SETTINGS.iter().filter(|setting| setting.flag.is_some()) {
            args.flags.extend(given(setting.name).map(|text| (Flag::Key(setting.key), text)));
        }
        args.flags.extend(given("agent").map(|text| (Flag::Agent, text)));
        args.flags.extend(given("model").map(|text| (Flag::Model, text)));
        Ok(args)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Builds the flag of a setting.
fn flag(setting: &'static Setting, name: &'static str) -> Arg {
    let default = match setting.default {
        DefaultValue::Fixed(value) => value,
        DefaultValue::Computed { how, .. } => how,
    };
    let first = setting.doc.split(". ").next().unwrap_or_default();
    let help_text = |doc: &str| format!("{} [default: {default}]", doc.trim_end_matches('.').replace('`', ""));
    let arg = Arg::new(setting.name).long(name.trim_start_matches('-')).action(ArgAction::Append);
    let arg = arg.help(help_text(first)).long_help(help_text(setting.doc));
    match setting.kind {
        // The flag without a value means `true`.
        ValueKind::Switch => {
            arg.num_args(0..=1).require_equals(true).default_missing_value("true").value_name(setting.form)
        }
        ValueKind::Text | ValueKind::List | ValueKind::Size => arg.value_name(setting.form),
    }
}
