from benchmarks.accuracy.runs import *
import sys
torch.set_num_threads(1)
make_study(Place(Path(sys.argv[1]), Log(Path(sys.argv[2]))))
