"""A differential fuzzer: random calls of the op and of every module against fp64 textbooks.

```
python -m regard.testing.fuzz --calls 1000000 --seed 20300131 --report reports/fuzz.txt --jobs 2
python -m regard.testing.fuzz --case 20300131000000123
```

| file | what it holds |
|---|---|
| `opcase` | a call of the op as plain data, drawn from one integer |
| `op` | its numbers, the library's answer, the textbook's |
| `masks`, `layouts`, `poison` | who sees whom, strides, and NaN where nothing may be read |
| `modules/` | the same for every module, one file for each family |
| `mistakes`, `module_mistakes` | wrong arguments, for which one clear error is expected |
| `textbook`, `view` | attention and scores as textbooks write them, in any dtype |
| `judge` | how far off a result may be |
| `runner`, `tally`, `report`, `shrink`, `code` | many cases, what they found, and one case for a person |

Nothing here may take what is expected from the code that is tested.
"""
