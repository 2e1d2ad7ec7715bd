/* For programs that include infiniband/verbs_exp.h: compile them with -I PREFIX/include/adverb/compat. */
#include <adverb/verbs_exp.h>
