// node inputs.mjs FOLDER ROUNDS: compiles a circuit into FOLDER, and computes its witness.
//
// Each round is a Poseidon2 permutation of the state, whose low 64 bits are XORed into a sum: arithmetic, range checks and lookups.

import { compile, createFileManager } from "@noir-lang/noir_wasm";
import { Noir } from "@noir-lang/noir_js";
import { mkdirSync, writeFileSync } from "node:fs";

const [folder, rounds] = process.argv.slice(2);
mkdirSync(`${folder}/src`, { recursive: true });
writeFileSync(`${folder}/Nargo.toml`, '[package]\nname = "chain"\ntype = "bin"\nauthors = []\n[dependencies]\n');
writeFileSync(
  `${folder}/src/main.nr`,
  `use std::hash::poseidon2_permutation;

fn main(start: Field) -> pub (Field, u64) {
    let mut state = [start, 1, 2, 3];
    let mut sum: u64 = 0;
    for _ in 0..${rounds} {
        state = poseidon2_permutation(state);
        sum ^= state[0] as u64;
    }
    (state[0], sum)
}
`,
);
const { program } = await compile(createFileManager(folder));
writeFileSync(`${folder}/circuit.json`, JSON.stringify(program));
const { witness } = await new Noir(program).execute({ start: 7 });
writeFileSync(`${folder}/witness.gz`, witness);
