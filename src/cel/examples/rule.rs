//! Times a typical validation rule: `cargo run --release --example rule`.

use std::sync::Arc;
use std::time::Instant;

use polyplane_cel::{Environment, Fields, Map, Node, Program, Type, Value, check, parse};

/// An object with two numbers.
#[derive(Debug)]
struct Object {
    replicas: i64,
    max_replicas: i64,
}

impl Fields for Object {
    fn len(&self) -> usize {
        2
    }

    fn get(&self, name: &str) -> Option<Node<'_>> {
        match name {
            "replicas" => Some(Node::Int(self.replicas)),
            "maxReplicas" => Some(Node::Int(self.max_replicas)),
            _ => None,
        }
    }

    fn at(&self, index: usize) -> Option<(&str, Node<'_>)> {
        match index {
            0 => Some(("replicas", Node::Int(self.replicas))),
            1 => Some(("maxReplicas", Node::Int(self.max_replicas))),
            _ => None,
        }
    }
}

fn main() -> anyhow::Result<()> {
    let mut environment = Environment::kubernetes();
    let fields = ["replicas", "maxReplicas"].map(|name| (name, Type::Int));
    environment.declare_struct("Object", fields);
    environment.declare("self", Type::Struct("Object".into()));
    let ast = parse("self.replicas <= self.maxReplicas", &environment.syntax)?;
    let checked = check(ast, &environment)?;
    let program = Program::checked(&checked, &Arc::new(environment));
    let object = Object {
        replicas: 3,
        max_replicas: 5,
    };
    let variables = [Value::Map(Map::Tree(&object))];
    let turns: u32 = 5_000_000;
    let begun = Instant::now();
    let mut cost = 0;
    for _ in 0..turns {
        cost += std::hint::black_box(program.evaluate(&variables, 1_000_000)).cost;
    }
    let nanos = begun.elapsed().as_nanos() / u128::from(turns);
    println!("{nanos} ns, cost {}", cost / u64::from(turns));
    Ok(())
}
