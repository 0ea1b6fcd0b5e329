//! Prints the golden vectors of `tests/golden.txt`: plane, replica, −log2(u) in fixed point, rank.

use polyplane_ring::{
    Incarnation, InvalidName, Member, Pin, PlaneId, Score, Standing, View, ViewNumber, Weight,
};

fn main() -> Result<(), InvalidName> {
    let mut members = Vec::new();
    for n in 0..5_u16 {
        members.push(Member {
            id: format!("polyplane-{n}").parse()?,
            incarnation: Incarnation::new(1),
            address: "h:1".parse()?,
            zone: None,
            weight: Weight::new(100 + 50 * n).unwrap_or_default(),
            standing: Standing::Serving,
        });
    }
    let view = View::new(ViewNumber::new(1), members);
    let long = "a-plane-whose-id-is-as-long-as-an-id-may-be-and-not-a-byte-more";
    let planes = [
        "root", "a", "team-a", "team-b", "0", "plane-1", "plane-2", "7f3a9c", "x1",
    ];
    let uuid = "3f2504e0-4f89-41d3-9a0c-0305e82c3301";
    for text in planes.into_iter().chain([uuid, long, "polyplane-0"]) {
        let plane: PlaneId = text.parse()?;
        for (place, member) in view.ranked(&plane, &Pin::Anywhere).iter().enumerate() {
            let score = Score::of(&plane, &member.id, member.weight);
            println!("{plane} {} {} {place}", member.id, score.neg_log2());
        }
    }
    Ok(())
}
