//! The fair division of room that is less than everybody wants.

/// Returns how much each may have at most, so that together they get no more than `capacity` and nothing
/// of it is left while somebody wants more, but for a remainder smaller than their number. Who wants less
/// gets all of that, and the others get equally much: no one could have more without taking it from one
/// who has less. Each may have one at least, so with more of them than `capacity` not all find room.
///
/// Sorts `wanted`.
#[must_use]
pub fn fair_limit(wanted: &mut [usize], capacity: usize) -> usize {
    wanted.sort_unstable();
    let (mut left, count) = (capacity, wanted.len());
    for (at, want) in wanted.iter().enumerate() {
        let each = left / (count - at);
        if *want > each {
            return each.max(1);
        }
        left -= want;
    }
    usize::MAX
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn who_wants_less_than_the_share_leaves_the_rest_to_the_others() {
        assert_eq!(fair_limit(&mut [2, 2, 2000], 960), 956);
        assert_eq!(fair_limit(&mut [20, 2, 2, 2], 9), 3);
        assert_eq!(fair_limit(&mut [10, 10], 9), 4);
    }

    #[test]
    fn nobody_is_limited_while_there_is_room_for_all() {
        assert_eq!(fair_limit(&mut [2, 2, 5], 9), usize::MAX);
        assert_eq!(fair_limit(&mut [], 9), usize::MAX);
        assert_eq!(fair_limit(&mut [], 0), usize::MAX);
    }

    proptest! {
        #[test]
        fn the_room_is_used_up_and_never_more(
            mut wanted in proptest::collection::vec(1_usize..300, 1..200), capacity in 0_usize..2000,
        ) {
            let all: usize = wanted.iter().sum();
            let limit = fair_limit(&mut wanted, capacity);
            let given: usize = wanted.iter().map(|want| *want.min(&limit)).sum();
            prop_assert!(limit >= 1);
            if all <= capacity {
                prop_assert_eq!(given, all);
            } else if wanted.len() <= capacity {
                prop_assert!(given <= capacity && capacity - given < wanted.len());
            } else {
                prop_assert_eq!(limit, 1);
            }
        }
    }
}
