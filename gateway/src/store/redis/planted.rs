//! Planted bugs of the Lua functions: text replacements in the library that a node loads into its test server.
use turnway_core::planted::Planted;

/// The bug, the text of the library, and its replacement.
const CHANGES: [(Planted, &str, &str); 20] = [
    (Planted::LuaInboxBytesKept, "      set('ib', str(bytes))\n", ""),
    (Planted::LuaInboxBytesUncounted, ", 'ib', str(bytes), 'ub'", ", 'ub'"),
    (Planted::LuaInboxOneMore, "open >= num(args[9])", "open > num(args[9])"),
    (Planted::LuaControlUnbounded, "redis.call('XLEN', lane) >= num(args[8])", "false"),
    (
        Planted::LuaListenersDoubled,
        "redis.call('HLEN', ls) >= num(args[3])",
        "redis.call('HLEN', ls) >= 2 * num(args[3])",
    ),
    (Planted::LuaUnlistenUnstamped, "known and num(known) <= num(args[2])", "known"),
    (
        Planted::LuaLeaseKeyKept,
        "  if args[1] == '0' then redis.call('PEXPIREAT', keys[1], str(math.max(last, until_))) end\n",
        "",
    ),
    (
        Planted::LuaDeletionKeepsLog,
        "redis.call('DEL', keys[2], keys[3], keys[4], keys[5], keys[6], keys[7])",
        "redis.call('DEL', keys[2], keys[3], keys[4], keys[5], keys[6])",
    ),
    (Planted::LuaExpiresEarly, "ended ~= '-' and num(ended) <= floor", "ended ~= '-' and floor >= 0"),
    (Planted::LuaTrimsPastSnapshot, "math.min(num(args[3]), num(h.ss))", "num(args[3])"),
    (Planted::LuaFindForeign, "if not taken or foreign(h, args[1], args[2])", "if not taken"),
    (
        Planted::LuaUnregisterUnstamped,
        "if num(redis.call('ZSCORE', keys[1], args[1]) or '0') == num(args[2])",
        "if redis.call('ZSCORE', keys[1], args[1])",
    ),
    (Planted::LuaPutAnyVersion, "if version == num(args[1])", "if version >= 0"),
    (Planted::LuaListsDeleted, "if not h.u or h.g then return {} end", "if not h.u then return {} end"),
    (Planted::LuaReadsWithoutRoom, "full = full or (bytes > room and #facts > 0)", "full = full or false"),
    (Planted::LuaOweForgets, ", now) + num(args[1])", ", now)"),
    (Planted::LuaRateKeyKept, ", 'PX', str(math.ceil(ahead / 1000) + 1))", ")"),
    (Planted::LuaAcceptUnregistered, "if (h.n == '' and not fresh(args[11], now)) or (not h.u", "if (not h.u"),
    (Planted::LuaReleaseUncounted, "  count(keys[1], h.u, num(h.ub))\n", ""),
    (Planted::LuaQuotaSeesSumsOnly, "num(h.ub) + weight, args[15]", "weight, args[15]"),
];

/// Returns the library with the bug that is planted in this process, if it is one of these.
#[cfg(feature = "planted")]
pub(super) fn with_planted_bug(source: &str) -> String {
    let bug = CHANGES.iter().find(|(bug, ..)| turnway_core::planted::planted(*bug));
    bug.map_or_else(
        || source.to_owned(),
        |(bug, from, to)| {
            assert_eq!(source.matches(from).count(), 1, "{bug:?} changes what is not there");
            source.replace(from, to)
        },
    )
}

#[cfg(test)]
mod tests {
    use super::CHANGES;
    use crate::store::redis::library::SOURCE;

    /// A bug that cannot be planted would be counted as caught by whatever fails instead.
    #[test]
    fn each_planted_bug_changes_the_library_exactly_once() {
        for (bug, from, to) in CHANGES {
            assert_eq!(SOURCE.matches(from).count(), 1, "{bug:?}");
            assert_ne!(from, to, "{bug:?}");
        }
    }
}
