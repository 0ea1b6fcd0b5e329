//! An expression that asks the authorizer stops at each missing answer, and then goes on.

use std::collections::BTreeMap;
use std::sync::Arc;

use polyplane_cel::{
    Decision, Environment, Fault, Program, Question, Type, Value, authorizer, check, parse,
};

#[test]
fn a_missing_answer_stops_the_evaluation_and_nothing_absorbs_it() {
    let mut environment = Environment::kubernetes();
    let of = Type::parse("kubernetes.authorization.Authorizer").expect("it is a type");
    environment.declare("authorizer", of);
    let text = "authorizer.path('/healthz').check('get').allowed() || \
        authorizer.serviceAccount('ns', 'sa').group('apps').resource('deployments')\
        .namespace('ns').check('create').reason() == 'because'";
    let ast = parse(text, &environment.syntax).expect("it parses");
    let checked = check(ast, &environment).expect("its types agree");
    let program = Program::checked(&checked, &Arc::new(environment));
    let mut known: BTreeMap<Question, Decision> = BTreeMap::new();
    let mut asked = Vec::new();
    let outcome = loop {
        let variables = [authorizer(Arc::new(known.clone()))];
        match program.evaluate(&variables, 1_000_000).outcome {
            Err(Fault::Need(question)) => {
                asked.push(format!(
                    "{} {}{}",
                    question.verb, question.path, question.resource
                ));
                let decision = Decision {
                    reason: "because".to_owned(),
                    ..Decision::default()
                };
                known.insert(*question, decision);
            }
            other => break other.map(|value| matches!(value, Value::Bool(true))),
        }
    };
    assert_eq!(outcome, Ok(true));
    assert_eq!(asked, ["get /healthz", "create deployments"]);
}
