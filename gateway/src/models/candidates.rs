//! The order in which upstreams are asked for a model: those of its name by their weights, then its fallbacks.
use super::upstream::Upstream;
use std::sync::Arc;

/// Returns the upstreams for a name in the order in which they are asked, none twice. `random` returns numbers that are
/// evenly distributed.
pub(super) fn candidates(all: &[Arc<Upstream>], name: &str, mut random: impl FnMut() -> u64) -> Vec<Arc<Upstream>> {
    let mut order = by_weight(all, name, &mut random);
    let fallbacks: Vec<String> = order.iter().flat_map(|upstream| upstream.spec.fallback.iter().cloned()).collect();
    for fallback in fallbacks {
        for upstream in by_weight(all, &fallback, &mut random) {
            if order.iter().all(|known| known.spec.id != upstream.spec.id) {
                order.push(upstream);
            }
        }
    }
    order
}

/// Returns the upstreams of one name in a random order, in which each is first with the probability of its weight
/// (Efraimidis and Spirakis, "Weighted random sampling with a reservoir", 2006). Those of weight 0 come last.
fn by_weight(all: &[Arc<Upstream>], name: &str, random: &mut impl FnMut() -> u64) -> Vec<Arc<Upstream>> {
    let named = all.iter().filter(|upstream| upstream.spec.name == name);
    let mut keyed: Vec<_> = named
        .map(|upstream| {
            // From 2^-53 to 1, so that the logarithm is finite.
            #[expect(clippy::cast_precision_loss, reason = "53 bits fit exactly")]
            let chance = ((random() >> 11) + 1) as f64 / (1u64 << 53) as f64;
            (-chance.ln() / f64::from(upstream.spec.weight), Arc::clone(upstream))
        })
        .collect();
    keyed.sort_by(|(one, _), (other, _)| one.total_cmp(other));
    keyed.into_iter().map(|(_, upstream)| upstream).collect()
}

#[cfg(test)]
mod tests {
    use super::super::upstream::tests::upstreams;
    use super::*;

    fn ids(all: &[Arc<Upstream>], name: &str, state: &mut u64) -> Vec<String> {
        let random = || {
            // splitmix64
            *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
            let mut mixed = (*state ^ (*state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            mixed ^ (mixed >> 31)
        };
        candidates(all, name, random).iter().map(|upstream| upstream.spec.id.clone()).collect()
    }

    #[tokio::test]
    async fn upstream_is_first_as_often_as_its_weight_says() {
        let all = upstreams(&[
            "a=http://h,name=m,weight=3",
            "b=http://h,name=m,weight=1",
            "spare=http://h,name=m,weight=0",
            "other=http://h",
        ]);
        let mut state = 7;
        let mut firsts = 0;
        for _ in 0..4000 {
            let order = ids(&all, "m", &mut state);
            assert_eq!(order.len(), 3);
            assert_eq!(order[2], "spare");
            firsts += u32::from(order[0] == "a");
        }
        assert!((2850..3150).contains(&firsts), "{firsts} of 4000");
    }

    #[tokio::test]
    async fn fallbacks_follow_in_their_order_without_repetition() {
        let all = upstreams(&["a=http://h,fallback=b|c", "b=http://h,fallback=a", "c=http://h"]);
        assert_eq!(ids(&all, "a", &mut 1), ["a", "b", "c"]);
        assert_eq!(ids(&all, "b", &mut 1), ["b", "a"], "fallbacks of fallbacks are not asked");
        assert!(ids(&all, "d", &mut 1).is_empty());
    }
}
