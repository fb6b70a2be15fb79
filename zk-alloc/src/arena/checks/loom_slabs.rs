//! Every interleaving, up to a number of interruptions, of work on slabs in a real zone on real memory.
#![allow(unsafe_code, reason = "prefaults memory")]

use super::models::{join, spawn, with_memory};
use super::slab_models::{PAGE_BYTES, Slabs, ZONE_PAGE_BYTES, in_a_page, long, short};
use crate::arena::purge::budget;
use crate::classes::Class;

#[test]
fn a_block_has_one_owner() {
    with_memory(ZONE_PAGE_BYTES, 3, move |memory| {
        let slabs = Slabs::new(memory, 1);
        let kept = slabs.take(short(), 1);
        let other = slabs.clone();
        let thread = spawn(move || other.pass(short()));
        slabs.pass(short());
        join([thread]);
        slabs.put(short(), &kept);
        slabs.assert_all_retired();
    });
}

#[test]
fn two_that_take_several_blocks_at_once_have_different_ones() {
    with_memory(ZONE_PAGE_BYTES, 2, move |memory| {
        let slabs = Slabs::new(memory, 1);
        let kept = slabs.take(short(), 63);
        let other = slabs.clone();
        let thread = spawn(move || {
            let blocks = other.take(short(), 2);
            other.put(short(), &blocks);
        });
        let blocks = slabs.take(short(), 2);
        slabs.put(short(), &blocks);
        join([thread]);
        slabs.put(short(), &kept);
        slabs.assert_all_retired();
    });
}

#[test]
fn a_block_that_one_thread_takes_and_another_puts_back_serves_a_third() {
    with_memory(ZONE_PAGE_BYTES, 2, move |memory| {
        let slabs = Slabs::new(memory, 1);
        let (a, b) = (slabs.clone(), slabs.clone());
        let (first, second) = (slabs.take(short(), 1), slabs.take(short(), 1));
        let threads = [spawn(move || a.put(short(), &first)), spawn(move || b.pass(short()))];
        slabs.put(short(), &second);
        join(threads);
        slabs.assert_all_retired();
    });
}

/// Both threads put back the last block of a word. One of them retires the slab. If they are in each other's way, one tries again.
#[test]
fn a_slab_is_retired_once_by_one_of_those_who_put_its_last_blocks_back() {
    with_memory(ZONE_PAGE_BYTES, 3, move |memory| {
        let slabs = Slabs::new(memory, 1);
        let blocks = [slabs.take(short(), 64), slabs.take(short(), 1)].concat();
        let (first, last) = (blocks[0], blocks[64]);
        slabs.put(short(), &blocks[1..64]);
        let other = slabs.clone();
        let thread = spawn(move || other.put(short(), &[first]));
        slabs.put(short(), &[last]);
        join([thread]);
        slabs.assert_all_retired();
    });
}

#[test]
fn what_is_taken_from_a_slab_while_another_thread_retires_it_keeps_it() {
    with_memory(ZONE_PAGE_BYTES, 2, move |memory| {
        let slabs = Slabs::new(memory, 2);
        let last = slabs.take(short(), 1);
        let other = slabs.clone();
        let thread = spawn(move || {
            let blocks = other.take(short(), 1);
            other.put(short(), &blocks);
        });
        slabs.put(short(), &last);
        join([thread]);
        slabs.assert_all_retired();
    });
}

/// One thread follows a hint to a slab that becomes a slab of the other class.
fn becomes_another_class(interruptions: usize, from: fn() -> Class, to: fn() -> Class) {
    with_memory(ZONE_PAGE_BYTES, interruptions, move |memory| {
        let slabs = Slabs::new(memory, 1);
        let last = slabs.take(from(), 1);
        let other = slabs.clone();
        let thread = spawn(move || other.pass(from()));
        slabs.put(from(), &last);
        slabs.pass(to());
        join([thread]);
        slabs.assert_all_retired();
    });
}

#[test]
fn an_old_hint_leads_to_a_slab_of_a_longer_class() {
    becomes_another_class(3, short, long);
}

#[test]
fn an_old_hint_leads_to_a_slab_of_a_shorter_class() {
    becomes_another_class(3, long, short);
}

/// A thread looks whether it can retire a slab. The slab is of another class by then, and the thread takes words that look the same.
fn retiring_becomes_another_class(interruptions: usize, from: fn() -> Class, to: fn() -> Class) {
    with_memory(ZONE_PAGE_BYTES, interruptions, move |memory| {
        let slabs = Slabs::new(memory, 1);
        let blocks = slabs.take(from(), 64).into_iter().chain(slabs.take(from(), 1)).collect::<Vec<_>>();
        // One block is in the slab's first word, the other in its last. Each completes its word.
        let (first, last) = (blocks[0], blocks[64]);
        slabs.put(from(), &blocks[1..64]);
        let other = slabs.clone();
        let thread = spawn(move || other.put(from(), &[first]));
        slabs.put(from(), &[last]);
        slabs.pass(to());
        join([thread]);
        slabs.assert_all_retired();
    });
}

#[test]
fn a_slab_that_becomes_one_of_a_longer_class_while_it_is_retired_is_left_whole() {
    retiring_becomes_another_class(5, short, long);
}

#[test]
fn a_slab_that_becomes_one_of_its_class_again_while_it_is_retired_is_left_whole() {
    retiring_becomes_another_class(3, short, short);
}

/// One word holds all blocks of the slab. A thread fills it, and looks whether it can retire the slab. Another thread may have taken
/// and put back a block since, retired the slab, and so on.
#[test]
fn a_slab_that_becomes_one_of_a_shorter_class_while_it_is_retired_is_left_whole() {
    with_memory(ZONE_PAGE_BYTES, 3, move |memory| {
        let slabs = Slabs::new(memory, 1);
        let last = slabs.take(long(), 1);
        let other = slabs.clone();
        let thread = spawn(move || other.put(long(), &last));
        slabs.pass(long());
        slabs.pass(short());
        join([thread]);
        slabs.assert_all_retired();
    });
}

/// As before, but the slab's first word looks like that of an empty slab of the old class, and its second word has a block in use.
#[test]
fn a_slab_that_becomes_one_of_a_shorter_class_while_it_is_retired_keeps_its_blocks() {
    with_memory(ZONE_PAGE_BYTES, 3, move |memory| {
        let slabs = Slabs::new(memory, 1);
        let last = slabs.take(long(), 1);
        let other = slabs.clone();
        let thread = spawn(move || other.put(long(), &last));
        slabs.pass(long());
        if let Ok(first) = slabs.try_take(short(), 64) {
            let second = slabs.try_take(short(), 1);
            slabs.put(short(), &first);
            second.into_iter().for_each(|block| slabs.put(short(), &block));
        }
        join([thread]);
        slabs.assert_all_retired();
    });
}

/// The only slab is almost full. A block is put back while other threads find nothing, and clear the hint. It is found afterwards.
#[test]
fn a_block_that_is_put_back_while_others_take_the_hint_away_is_not_lost() {
    with_memory(ZONE_PAGE_BYTES, 2, move |memory| {
        let slabs = Slabs::new(memory, 1);
        let mut kept = [slabs.take(short(), 64), slabs.take(short(), 64)].concat();
        let most = short().blocks();
        slabs.put(short(), &kept.split_off(most - 1));
        let last = kept.split_off(most - 2);
        let (a, b) = (slabs.clone(), slabs.clone());
        let threads = [spawn(move || a.pass(short())), spawn(move || b.pass(short()))];
        slabs.put(short(), &last);
        join(threads);
        slabs.assert_none_lost(short());
        slabs.put(short(), &kept);
        slabs.assert_all_retired();
    });
}

#[test]
fn no_page_that_a_block_in_use_touches_is_purged_and_no_block_is_lost() {
    with_memory(ZONE_PAGE_BYTES, 3, move |memory| {
        let slabs = Slabs::new(memory, 1);
        let blocks = slabs.take(short(), in_a_page(short()) + 2);
        let (kept, free) = blocks.split_at(in_a_page(short()) + 1);
        // The second page has one block in use, and a free block, which two threads want.
        slabs.put(short(), free);
        let other = slabs.clone();
        let thread = spawn(move || other.purge());
        slabs.pass(short());
        join([thread]);
        slabs.put(short(), &kept[in_a_page(short())..]);
        slabs.purge();
        assert_eq!(slabs.model.accounted_bytes(), PAGE_BYTES, "the second page was free");
        assert_eq!(slabs.model.bytes_in_memory(), PAGE_BYTES);
        slabs.put(short(), &kept[..in_a_page(short())]);
        slabs.assert_all_retired();
    });
}

#[test]
fn a_page_that_is_purged_while_its_blocks_come_and_go_is_accounted_as_long_as_it_is_resident() {
    with_memory(ZONE_PAGE_BYTES, 2, move |memory| {
        let slabs = Slabs::new(memory, 1);
        let blocks = slabs.take(short(), in_a_page(short()) + 1);
        let (kept, last) = blocks.split_at(in_a_page(short()));
        let (a, b) = (slabs.clone(), slabs.clone());
        let threads = [spawn(move || a.purge()), spawn(move || b.pass(short()))];
        slabs.put(short(), last);
        join(threads);
        assert_eq!(slabs.model.accounted_bytes(), slabs.model.bytes_in_memory());
        slabs.put(short(), kept);
        slabs.assert_all_retired();
    });
}

/// Every owner of a free block may purge the page behind the last block.
#[test]
fn the_page_behind_the_last_block_is_taken_off_the_account_once() {
    with_memory(ZONE_PAGE_BYTES, 3, move |memory| {
        let slabs = Slabs::with_resident_memory(memory, 1);
        let kept = slabs.take(short(), 1);
        let other = slabs.clone();
        let thread = spawn(move || other.purge());
        slabs.purge();
        join([thread]);
        assert_eq!(slabs.model.accounted_bytes(), PAGE_BYTES);
        assert_eq!(slabs.model.bytes_in_memory(), PAGE_BYTES);
        slabs.put(short(), &kept);
        slabs.assert_all_retired();
    });
}

/// The last block comes back while the slab's other pages are purged. The thread that has all blocks in the end retires the slab.
#[test]
fn a_slab_that_is_retired_while_it_is_purged_is_accounted_once() {
    with_memory(ZONE_PAGE_BYTES, 3, move |memory| {
        let slabs = Slabs::with_resident_memory(memory, 1);
        let last = slabs.take(short(), 1);
        let other = slabs.clone();
        let thread = spawn(move || other.purge());
        slabs.put(short(), &last);
        join([thread]);
        // A slab returns to its zone with the pages that the purge left. The zone accounts by its own pages, and touches none.
        assert!(slabs.model.accounted_bytes() >= slabs.model.bytes_in_memory());
        slabs.assert_all_retired();
    });
}

/// As before, with a second purge of the slab and blocks in both of its words.
#[test]
fn a_slab_that_is_retired_while_two_threads_purge_it_is_accounted_once() {
    with_memory(ZONE_PAGE_BYTES, 2, move |memory| {
        let slabs = Slabs::with_resident_memory(memory, 1);
        let last = slabs.take(short(), 1);
        let (a, b) = (slabs.clone(), slabs.clone());
        let threads = [spawn(move || a.purge()), spawn(move || b.purge())];
        slabs.put(short(), &last);
        join(threads);
        assert!(slabs.model.accounted_bytes() >= slabs.model.bytes_in_memory());
        slabs.assert_all_retired();
    });
}

#[test]
fn what_is_freed_during_a_purge_is_purged_by_the_next() {
    with_memory(ZONE_PAGE_BYTES, 2, move |memory| {
        let slabs = Slabs::new(memory, 1);
        let mut kept = slabs.take(short(), 2 * in_a_page(short()) + 1);
        slabs.put(short(), &kept.split_off(2 * in_a_page(short())));
        let second_page = kept.split_off(in_a_page(short()));
        let other = slabs.clone();
        let thread = spawn(move || other.purge());
        slabs.put(short(), &second_page);
        join([thread]);
        slabs.purge();
        assert_eq!(slabs.model.accounted_bytes(), PAGE_BYTES, "a free page is never purged");
        slabs.put(short(), &kept);
        slabs.assert_all_retired();
    });
}

/// The purging thread follows a hint to a slab that becomes one of the other class, whose blocks lie on other pages.
#[test]
fn what_is_purged_by_an_old_hint_belongs_to_a_slab_of_another_class() {
    a_slab_becomes_one_of_another_class_during(3, Slabs::purge);
}

fn a_slab_becomes_one_of_another_class_during(interruptions: usize, work: fn(&Slabs)) {
    with_memory(ZONE_PAGE_BYTES, interruptions, move |memory| {
        let slabs = Slabs::new(memory, 1);
        let last = slabs.take(short(), 1);
        let other = slabs.clone();
        let thread = spawn(move || work(&other));
        slabs.put(short(), &last);
        let mut blocks = slabs.try_take(long(), in_a_page(long()) + 1).unwrap_or_default();
        let second_page = blocks.split_off(in_a_page(long()).min(blocks.len()));
        if !blocks.is_empty() {
            slabs.put(long(), &blocks);
        }
        join([thread]);
        slabs.put(long(), &second_page);
        slabs.assert_all_retired();
    });
}

/// There is budget for one more page, and each of two threads wants one.
#[test]
fn what_would_exceed_the_cap_is_purged_and_not_accounted() {
    with_memory(ZONE_PAGE_BYTES, 2, move |memory| {
        let slabs = Slabs::new(memory, 1);
        let kept = slabs.take(long(), in_a_page(long()));
        budget::set_max(budget::resident_bytes() + PAGE_BYTES);
        let other = slabs.clone();
        let want = move |slabs: &Slabs| {
            if let Ok(blocks) = slabs.try_take(long(), in_a_page(long())) {
                slabs.put(long(), &blocks);
            }
        };
        let thread = spawn(move || want(&other));
        want(&slabs);
        join([thread]);
        assert_eq!(slabs.model.accounted_bytes(), slabs.model.bytes_in_memory());
        budget::set_max(usize::MAX);
        slabs.put(long(), &kept);
        slabs.assert_all_retired();
    });
}
