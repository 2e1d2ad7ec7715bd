/* The native part of a package as wheels have it: linked to a copy of libibverbs beside it. */

#include <infiniband/verbs.h>

/* How many adapters there are that let themselves be opened and asked; -1 where one does not. */
int adapters(void)
{
	struct ibv_device_attr attr;
	int count = 0, i;
	struct ibv_device **list = ibv_get_device_list(&count);

	if (!list)
		return -1;
	for (i = 0; i < count; i++) {
		struct ibv_context *context = ibv_open_device(list[i]);

		if (!context || ibv_query_device(context, &attr) || ibv_close_device(context))
			return -1;
	}
	ibv_free_device_list(list);
	return count;
}
