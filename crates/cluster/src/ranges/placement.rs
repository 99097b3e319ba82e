//! A placement: the owner and the backups of a range of chunks.

use std::fmt;

use crate::ids::NodeId;

/// Backups of a placement at most.
pub const BACKUPS_MAX: usize = 3;

/// An owner and up to three backups in order, in 64 bits: the owner lowest, then the first backup
/// (DXRAM, section 3.2). Missing backups are 0xFFFF, and come last.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Placement(u64);

impl Placement {
    /// An owner with these backups.
    ///
    /// # Errors
    ///
    /// [`PlacementError::TooManyBackups`] above [`BACKUPS_MAX`], [`PlacementError::NodeTwice`] if a
    /// node would hold two copies.
    pub fn new(owner: NodeId, backups: &[NodeId]) -> Result<Self, PlacementError> {
        if backups.len() > BACKUPS_MAX {
            return Err(PlacementError::TooManyBackups);
        }
        let mut nodes = [u16::MAX; BACKUPS_MAX + 1];
        nodes[0] = owner.get();
        for (place, backup) in backups.iter().enumerate() {
            if nodes[..=place].contains(&backup.get()) {
                return Err(PlacementError::NodeTwice);
            }
            nodes[place + 1] = backup.get();
        }
        Ok(Self::from_nodes(nodes))
    }

    /// An owner without backups.
    pub fn of_owner(owner: NodeId) -> Self {
        Self::from_nodes([owner.get(), u16::MAX, u16::MAX, u16::MAX])
    }

    /// The placement with these bits, as on the wire.
    ///
    /// # Errors
    ///
    /// [`PlacementError::NoOwner`] without an owner, [`PlacementError::NodeTwice`] if a node would
    /// hold two copies or a backup follows a missing one.
    pub fn from_bits(bits: u64) -> Result<Self, PlacementError> {
        let nodes = Self(bits).nodes();
        let owner = NodeId::new(nodes[0]).map_err(|_| PlacementError::NoOwner)?;
        let backups: Vec<NodeId> = Self(bits).backups().collect();
        let whole = Self::new(owner, &backups)?;
        if whole.0 == bits { Ok(whole) } else { Err(PlacementError::NodeTwice) }
    }

    /// The bits of the placement, as on the wire.
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// The node that serves the chunks.
    #[inline]
    pub fn owner(self) -> NodeId {
        NodeId::new(self.0 as u16).expect("a placement has an owner")
    }

    /// The backups in order.
    pub fn backups(self) -> impl Iterator<Item = NodeId> {
        self.nodes().into_iter().skip(1).map_while(|number| NodeId::new(number).ok())
    }

    /// The placement after `node` is lost: the nodes behind it move up, so the first backup
    /// succeeds a lost owner. None if no node is left.
    pub fn without(self, node: NodeId) -> Option<Self> {
        let mut nodes = [u16::MAX; BACKUPS_MAX + 1];
        let left = self.nodes().into_iter().filter(|number| *number != node.get());
        nodes.iter_mut().zip(left).for_each(|(to, from)| *to = from);
        (nodes[0] != u16::MAX).then(|| Self::from_nodes(nodes))
    }

    fn from_nodes(nodes: [u16; BACKUPS_MAX + 1]) -> Self {
        Self(nodes.iter().rev().fold(0, |bits, node| bits << 16 | u64::from(*node)))
    }

    fn nodes(self) -> [u16; BACKUPS_MAX + 1] {
        std::array::from_fn(|place| (self.0 >> (16 * place)) as u16)
    }
}

impl fmt::Debug for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.owner().get())?;
        self.backups().try_for_each(|backup| write!(f, "+{}", backup.get()))
    }
}

/// The bits of a placement, or [`NOBODY`].
pub(super) type PlacementBits = u64;
/// The bits of ids without an owner.
pub(super) const NOBODY: PlacementBits = u64::MAX;

#[inline]
pub(super) fn to_bits(placement: Option<Placement>) -> PlacementBits {
    placement.map_or(NOBODY, |placement| placement.0)
}

#[inline]
pub(super) fn from_bits(bits: PlacementBits) -> Option<Placement> {
    (bits != NOBODY).then_some(Placement(bits))
}

/// The reason for which something is not a placement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlacementError {
    /// A placement has at most three backups.
    TooManyBackups,
    /// A node cannot hold two copies.
    NodeTwice,
    /// A placement needs an owner.
    NoOwner,
}

impl fmt::Display for PlacementError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TooManyBackups => "a placement has at most three backups",
            Self::NodeTwice => "a placement names a node twice",
            Self::NoOwner => "a placement has no owner",
        })
    }
}

impl std::error::Error for PlacementError {}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(number: u16) -> NodeId {
        NodeId::new(number).expect("a node")
    }

    #[test]
    fn those_behind_a_lost_node_move_up() {
        let whole = Placement::new(node(1), &[node(2), node(0), node(4)]).expect("valid");
        assert_eq!(format!("{whole:?}"), "1+2+0+4");
        let shown = |left: Option<Placement>| left.map(|left| format!("{left:?}"));
        assert_eq!(shown(whole.without(node(1))).as_deref(), Some("2+0+4"));
        assert_eq!(shown(whole.without(node(0))).as_deref(), Some("1+2+4"));
        assert_eq!(whole.without(node(9)), Some(whole));
        assert_eq!(Placement::of_owner(node(3)).without(node(3)), None);
        assert_eq!(Placement::of_owner(node(3)).backups().count(), 0);
    }

    #[test]
    fn invalid_placements_are_refused() {
        let four = [node(2), node(3), node(4), node(5)];
        assert_eq!(Placement::new(node(1), &four), Err(PlacementError::TooManyBackups));
        assert_eq!(Placement::new(node(1), &[node(1)]), Err(PlacementError::NodeTwice));
        assert_eq!(Placement::new(node(1), &[node(2), node(2)]), Err(PlacementError::NodeTwice));
    }

    #[test]
    fn nobody_is_not_a_placement() {
        let most = Placement::of_owner(node(0xFFFE));
        assert_ne!(to_bits(Some(most)), NOBODY);
        assert_eq!((from_bits(to_bits(Some(most))), from_bits(NOBODY)), (Some(most), None));
    }
}
