//! The tree as data: what it holds after each single store, and what it does when it is full.

use super::*;
use std::collections::BTreeMap;

const BASE: u64 = 0x7f00_0000_0000;

fn value(serial: u64) -> Value {
    Value { addr: 0x6000_0000_0000 + 64 * serial, len: (serial % 1000) as u32 }
}

fn apply(words: &mut [u64], store: Store) {
    words[(store.at / 8) as usize] = store.word;
}

/// Random keys are inserted, changed and removed. After each store every other key has its value, and the one
/// that is changed has the old one or the new one.
#[test]
fn after_each_store_every_key_is_found() {
    let mut rng = fastrand::Rng::with_seed(5);
    let (mut splits, mut levels) = (0, 0);
    for round in 0..6 {
        let room = Room::of(64, if round % 2 == 0 { 0 } else { 8 });
        let (mut tree, begin) = Tree::new(BASE, room);
        let mut words = vec![0; (room.bytes() / 8) as usize];
        begin.into_iter().for_each(|store| apply(&mut words, store));
        let mut model: BTreeMap<u64, Value> = BTreeMap::new();
        for serial in 1..=400 {
            let key = rng.u64(0..60) * 5;
            let mut after = model.clone();
            let change = if rng.u8(0..3) == 0 {
                after.remove(&key);
                tree.remove(key)
            } else {
                after.insert(key, value(serial));
                tree.insert(key, value(serial))
            };
            // Leaves are not joined, so that levels may be full before the nodes are.
            let Ok(change) = change else { continue };
            assert_eq!(change.before, model.get(&key).copied());
            splits += change.splits;
            for store in change.stores {
                apply(&mut words, store);
                for other in 0..300 {
                    let found = walked(&words, BASE, other);
                    let (before, now) = (model.get(&other).copied(), after.get(&other).copied());
                    assert!(found == before || found == now, "{other} after a store of {serial}: {found:?}");
                }
            }
            model = after;
            assert_eq!(walked(&words, BASE, key), model.get(&key).copied());
            levels = levels.max(tree.levels());
        }
        assert_eq!(tree.words, words);
    }
    assert!(splits > 100 && levels == LEVELS, "{splits} splits, {levels} levels");
}

/// Keys in order fill a tree of four levels. Then it says so, and nothing has changed.
#[test]
fn a_full_tree_refuses_a_key_and_keeps_the_others() {
    let (mut tree, _) = Tree::new(BASE, Room::of(400, 4));
    let last = (0..400).find(|key| tree.insert(*key, value(*key)).is_err()).expect("four levels are full");
    assert_eq!(tree.insert(last, value(last)), Err(Full::Levels));
    assert!(last > 3 * 3 * 3 * 3, "{last} keys");
    for key in 0..400 {
        assert_eq!(tree.get(key), (key < last).then(|| value(key)));
    }
    let small = Room { nodes: [2, 1, 1, 1], entries: 4 };
    let (mut tree, _) = Tree::new(BASE, small);
    assert_eq!(tree.insert(1, value(1)).map(|change| change.stores.len()), Ok(3 + 9 + 1));
    assert_eq!(tree.insert(2, value(2)).map(|change| change.splits), Ok(0));
    assert_eq!(tree.insert(3, value(3)).map(|change| change.splits), Ok(0));
    assert_eq!(tree.insert(4, value(4)), Err(Full::Entries));
    assert_eq!((tree.get(3), tree.get(4)), (Some(value(3)), None));
    assert_eq!(tree.insert(KEY_NONE, value(1)), Err(Full::Key));
    assert_eq!(tree.remove(9), Ok(Change::default()));
}
