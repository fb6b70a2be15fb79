//! The spans, folded by name: one node for all spans of one name that stand under one node.

use crate::own::{List, list};
use crate::reading::{Level, ThreadTotals, Totals};

/// More than any prover has. It bounds the layer's memory where a recursive function is a span.
const MOST_NODES: usize = 4096;

/// A node's place in the tree. The node of the whole program is [`WHOLE`].
pub(crate) type NodeId = usize;

pub(crate) const WHOLE: NodeId = 0;

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) name: &'static str,
    pub(crate) totals: Totals,
    /// Spans that were entered.
    pub(crate) spans: u64,
    /// Entries of them that have not ended.
    pub(crate) entered: usize,
    /// At the first entry, and at the last exit.
    pub(crate) at_entry: Level,
    pub(crate) at_exit: Level,
    /// By thread, of those that entered it.
    pub(crate) threads: List<(usize, ThreadTotals)>,
    first_child: Option<NodeId>,
    next_sibling: Option<NodeId>,
}

impl Node {
    fn new(name: &'static str) -> Self {
        Self {
            name,
            totals: Totals::default(),
            spans: 0,
            entered: 0,
            at_entry: Level::default(),
            at_exit: Level::default(),
            threads: list(),
            first_child: None,
            next_sibling: None,
        }
    }

    /// This thread's part of it.
    pub(crate) fn on_thread(&mut self, thread: usize) -> &mut ThreadTotals {
        let index = self.threads.iter().position(|known| known.0 == thread).unwrap_or_else(|| {
            self.threads.push((thread, ThreadTotals::default()));
            self.threads.len() - 1
        });
        &mut self.threads[index].1
    }
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Tree(List<Node>);

impl Tree {
    pub(crate) fn new() -> Self {
        let mut nodes = list();
        nodes.push(Node::new("the whole program"));
        Self(nodes)
    }

    pub(crate) fn node(&self, id: NodeId) -> &Node {
        &self.0[id]
    }

    pub(crate) fn node_mut(&mut self, id: NodeId) -> &mut Node {
        &mut self.0[id]
    }

    /// The nodes under this one, in the order in which they came.
    pub(crate) fn children(&self, id: NodeId) -> impl Iterator<Item = NodeId> {
        std::iter::successors(self.0[id].first_child, |&child| self.0[child].next_sibling)
    }

    /// The node for spans of this name under `parent`. A new one, unless the tree is full.
    pub(crate) fn find_or_add(&mut self, parent: NodeId, name: &'static str) -> Option<NodeId> {
        let known = self.children(parent).find(|&child| self.0[child].name == name);
        if known.is_some() || self.0.len() == MOST_NODES {
            return known;
        }
        let new = self.0.len();
        let last = self.children(parent).last();
        match last {
            Some(last) => self.0[last].next_sibling = Some(new),
            None => self.0[parent].first_child = Some(new),
        }
        self.0.push(Node::new(name));
        Some(new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_of_one_name_under_one_node_share_a_node_and_keep_their_order() {
        let mut tree = Tree::new();
        let prove = tree.find_or_add(WHOLE, "prove").unwrap();
        let open = tree.find_or_add(prove, "open").unwrap();
        let commit = tree.find_or_add(prove, "commit").unwrap();
        assert_eq!(tree.find_or_add(prove, "open"), Some(open));
        assert_ne!(tree.find_or_add(WHOLE, "open"), Some(open));
        assert_eq!(tree.children(prove).collect::<Vec<_>>(), [open, commit]);
    }

    #[test]
    fn a_recursion_fills_the_tree_and_no_more_memory() {
        let mut tree = Tree::new();
        let (mut parent, mut depth) = (WHOLE, 0);
        while let Some(child) = tree.find_or_add(parent, "recurse") {
            (parent, depth) = (child, depth + 1);
        }
        assert_eq!(depth, MOST_NODES - 1);
    }
}
