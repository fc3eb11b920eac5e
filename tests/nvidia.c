// libnvidia-ml.so.1 as far as koordlet uses it: NVML's C ABI over a machine that a file describes, read at each call.
//
//   driver 535.129.03
//   device 0000:1a:00.0 GPU-1 0 85899345920 503316480 1073741824 NVIDIA H100 80GB HBM3
//          address, uuid, minor, bytes in all, reserved, used, name
//   process 0000:1a:00.0 C 122 1500 0      list (C computes, G draws), pid, bytes, GPU instance
//   sample 0000:1a:00.0 122 1000001 70     pid, microseconds, percent of the multiprocessors
//   error nvmlDeviceGetUUID 15 0000:1a:00.0      a call's status, for one device or (-) for all
//   hang nvmlDeviceGetUUID                 the call comes back when this line is gone
//   event 1 0000:1a:00.0 8 79              number, address (or ? for no device), type, data
//
// It refuses what NVML refuses: calls before the first init and after the last shutdown, handles that it did not give,
// buffers that are too small, structures of another version. `calls` of the file named by KOORD_NVML_CALLS tells of each
// call made, for tests of what is called at all.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <pthread.h>
#include <time.h>
#include <unistd.h>

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7,
       TIMEOUT = 10, VERSION_MISMATCH = 25, UNKNOWN = 999 };
#define DEVICES 16
#define SETS 4
#define ADDRESS 16
#define XID 8ull
#define MEMORY_V2 (unsigned)(sizeof(struct memory_v2) | 2u << 24)

struct memory { unsigned long long total, free, used; };
struct memory_v2 { unsigned version; unsigned long long total, reserved, free, used; };
struct process { unsigned pid; unsigned long long used; unsigned instance, compute; };
struct sample { unsigned pid; unsigned long long at; unsigned sm, memory, encoder, decoder; };
struct event { struct device *device; unsigned long long type, data; unsigned instance, compute; };
struct pci { char legacy[16]; unsigned domain, bus, device, id, subsystem; char address[32]; };
struct device { char address[ADDRESS]; };
struct set { int used; unsigned long long wanted[DEVICES]; unsigned long last; };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int sessions;
static struct device devices[DEVICES];  // an address keeps its handle for the life of the process
static struct set sets[SETS];

static FILE *state(void)
{
    const char *path = getenv("KOORD_NVML_STATE");
    return path ? fopen(path, "r") : NULL;
}

static void told(const char *call)
{
    const char *path = getenv("KOORD_NVML_CALLS");
    FILE *file = path ? fopen(path, "a") : NULL;
    if (file) {
        fprintf(file, "%s\n", call);
        fclose(file);
    }
}

static int hangs(const char *call)
{
    char line[512], name[128];
    int found = 0;
    FILE *file = state();
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "hang %127s", name) == 1 && !strcmp(name, call))
            found = 1;
    if (file)
        fclose(file);
    return found;
}

// What is to be answered before anything is looked at: the session's state, or an error that the file asks for.
static int begin(const char *call, const char *address)
{
    char line[512], name[128], whose[64];
    int status, answer = SUCCESS;
    told(call);
    while (hangs(call))
        usleep(5000);
    if (!sessions)
        return UNINITIALIZED;
    FILE *file = state();
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "error %127s %d %63s", name, &status, whose) == 3 && !strcmp(name, call) &&
            (!strcmp(whose, "-") || (address && !strcmp(whose, address))))
            answer = status;
    if (file)
        fclose(file);
    return answer;
}

static int known(const struct device *device)
{
    return device >= devices && device < devices + DEVICES && device->address[0] &&
           ((const char *)device - (const char *)devices) % sizeof *device == 0;
}

static int enter(const char *call, const struct device *device)
{
    int status = begin(call, known(device) ? device->address : NULL);
    return status ? status : known(device) ? SUCCESS : INVALID_ARGUMENT;
}

struct row { char uuid[96], name[96]; unsigned minor; unsigned long long total, reserved, used; };

static int find(const char *address, struct row *row)
{
    char line[512], at[64];
    int found = 0;
    FILE *file = state();
    while (!found && file && fgets(line, sizeof line, file))
        found = sscanf(line, "device %63s %95s %u %llu %llu %llu %95[^\n]", at, row->uuid, &row->minor, &row->total,
                       &row->reserved, &row->used, row->name) == 7 && !strcasecmp(at, address);
    if (file)
        fclose(file);
    return found;
}

static int text(char *buffer, unsigned length, const char *value)
{
    if (!buffer)
        return INVALID_ARGUMENT;
    if (length < strlen(value) + 1)
        return INSUFFICIENT_SIZE;
    strcpy(buffer, value);
    return SUCCESS;
}

int nvmlInitWithFlags(unsigned flags)
{
    told("nvmlInitWithFlags");
    (void)flags;
    char line[512];
    int status = SUCCESS, wanted;
    FILE *file = state();
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "error nvmlInitWithFlags %d", &wanted) == 1)
            status = wanted;
    if (file)
        fclose(file);
    if (!file)
        return UNKNOWN;
    pthread_mutex_lock(&lock);
    sessions += status == SUCCESS;
    pthread_mutex_unlock(&lock);
    return status;
}

int nvmlShutdown(void)
{
    int status = begin("nvmlShutdown", NULL);
    pthread_mutex_lock(&lock);
    if (status == SUCCESS && --sessions == 0)
        memset(sets, 0, sizeof sets);
    pthread_mutex_unlock(&lock);
    return status;
}

const char *nvmlErrorString(int status)
{
    static char told_as[32];
    snprintf(told_as, sizeof told_as, "status %d", status);
    return told_as;
}

int nvmlSystemGetDriverVersion(char *buffer, unsigned length)
{
    char line[512], version[80] = "";
    int status = begin("nvmlSystemGetDriverVersion", NULL);
    FILE *file = state();
    while (file && fgets(line, sizeof line, file))
        sscanf(line, "driver %79s", version);
    if (file)
        fclose(file);
    return status ? status : text(buffer, length, version);
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *address, struct device **handle)
{
    char shown[ADDRESS];
    struct row row;
    unsigned domain, bus, slot, function;
    if (!address || !handle)
        return sessions ? INVALID_ARGUMENT : UNINITIALIZED;
    if (sscanf(address, "%x:%x:%x.%x", &domain, &bus, &slot, &function) != 4)
        return sessions ? INVALID_ARGUMENT : UNINITIALIZED;
    snprintf(shown, sizeof shown, "%04x:%02x:%02x.%u", domain & 0xffff, bus & 0xff, slot & 0xff, function & 7);
    int status = begin("nvmlDeviceGetHandleByPciBusId_v2", shown);
    if (status)
        return status;
    if (!find(shown, &row))
        return NOT_FOUND;
    pthread_mutex_lock(&lock);
    *handle = NULL;
    for (int i = 0; i < DEVICES && !*handle; i++)
        if (!devices[i].address[0] || !strcmp(devices[i].address, shown)) {
            strcpy(devices[i].address, shown);
            *handle = &devices[i];
        }
    pthread_mutex_unlock(&lock);
    return *handle ? SUCCESS : UNKNOWN;
}

int nvmlDeviceGetUUID(struct device *device, char *buffer, unsigned length)
{
    struct row row;
    int status = enter("nvmlDeviceGetUUID", device);
    return status ? status : find(device->address, &row) ? text(buffer, length, row.uuid) : UNKNOWN;
}

int nvmlDeviceGetName(struct device *device, char *buffer, unsigned length)
{
    struct row row;
    int status = enter("nvmlDeviceGetName", device);
    return status ? status : find(device->address, &row) ? text(buffer, length, row.name) : UNKNOWN;
}

int nvmlDeviceGetMinorNumber(struct device *device, unsigned *minor)
{
    struct row row;
    int status = enter("nvmlDeviceGetMinorNumber", device);
    if (status)
        return status;
    if (!minor)
        return INVALID_ARGUMENT;
    if (!find(device->address, &row))
        return UNKNOWN;
    *minor = row.minor;
    return SUCCESS;
}

int nvmlDeviceGetPciInfo_v3(struct device *device, struct pci *found)
{
    int status = enter("nvmlDeviceGetPciInfo_v3", device);
    if (status)
        return status;
    if (!found)
        return INVALID_ARGUMENT;
    memset(found, 0, sizeof *found);
    snprintf(found->address, sizeof found->address, "0000%s", device->address);  // NVML's domains have eight digits
    for (char *at = found->address; *at; at++)
        *at = *at >= 'a' && *at <= 'f' ? *at - 32 : *at;
    return SUCCESS;
}

// The older call counts as used what the driver keeps for itself.
int nvmlDeviceGetMemoryInfo(struct device *device, struct memory *found)
{
    struct row row;
    int status = enter("nvmlDeviceGetMemoryInfo", device);
    if (status)
        return status;
    if (!found)
        return INVALID_ARGUMENT;
    if (!find(device->address, &row))
        return UNKNOWN;
    *found = (struct memory){row.total, row.total - row.reserved - row.used, row.reserved + row.used};
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo_v2(struct device *device, struct memory_v2 *found)
{
    struct row row;
    int status = enter("nvmlDeviceGetMemoryInfo_v2", device);
    if (status)
        return status;
    if (!found)
        return INVALID_ARGUMENT;
    if (found->version != MEMORY_V2)
        return VERSION_MISMATCH;
    if (!find(device->address, &row))
        return UNKNOWN;
    *found = (struct memory_v2){MEMORY_V2, row.total, row.reserved, row.total - row.reserved - row.used, row.used};
    return SUCCESS;
}

static int processes(const char *call, char list, struct device *device, unsigned *count, struct process *found)
{
    char line[512], at[64], kind;
    struct process one;
    unsigned length = 0;
    int status = enter(call, device);
    if (status)
        return status;
    if (!count || (!found && *count))
        return INVALID_ARGUMENT;
    FILE *file = state();
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "process %63s %c %u %llu %u", at, &kind, &one.pid, &one.used, &one.instance) == 5 &&
            kind == list && !strcmp(at, device->address)) {
            one.compute = one.instance;
            if (length < *count)
                found[length] = one;
            length++;
        }
    if (file)
        fclose(file);
    status = length > *count ? INSUFFICIENT_SIZE : SUCCESS;
    *count = length;
    return status;
}

int nvmlDeviceGetComputeRunningProcesses_v3(struct device *device, unsigned *count, struct process *found)
{
    return processes("nvmlDeviceGetComputeRunningProcesses_v3", 'C', device, count, found);
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(struct device *device, unsigned *count, struct process *found)
{
    return processes("nvmlDeviceGetGraphicsRunningProcesses_v3", 'G', device, count, found);
}

// As drivers do: without a buffer the answer is the size of the driver's own, and no sample is an error.
int nvmlDeviceGetProcessUtilization(struct device *device, struct sample *found, unsigned *count,
                                    unsigned long long since)
{
    char line[512], at[64];
    unsigned length = 0;
    struct sample one = {0};
    int status = enter("nvmlDeviceGetProcessUtilization", device);
    if (status)
        return status;
    if (!count)
        return INVALID_ARGUMENT;
    FILE *file = state();
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "sample %63s %u %llu %u", at, &one.pid, &one.at, &one.sm) == 4 && one.at > since &&
            !strcmp(at, device->address)) {
            if (found && length < *count)
                found[length] = one;
            length++;
        }
    if (file)
        fclose(file);
    if (!length)
        return NOT_FOUND;
    status = !found || length > *count ? INSUFFICIENT_SIZE : SUCCESS;
    *count = found ? length : length + 4;
    return status;
}

static int known_set(const struct set *set)
{
    return set >= sets && set < sets + SETS && set->used;
}

int nvmlEventSetCreate(struct set **set)
{
    int status = begin("nvmlEventSetCreate", NULL);
    if (status)
        return status;
    if (!set)
        return INVALID_ARGUMENT;
    char line[512];
    unsigned long number, last = 0;
    FILE *file = state();
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "event %lu", &number) == 1 && number > last)
            last = number;  // what was before is nothing to a new set
    if (file)
        fclose(file);
    for (int i = 0; i < SETS; i++)
        if (!sets[i].used) {
            sets[i] = (struct set){.used = 1, .last = last};
            *set = &sets[i];
            return SUCCESS;
        }
    return UNKNOWN;
}

int nvmlDeviceRegisterEvents(struct device *device, unsigned long long types, struct set *set)
{
    int status = enter("nvmlDeviceRegisterEvents", device);
    if (status)
        return status;
    if (!known_set(set))
        return INVALID_ARGUMENT;
    if (types & ~XID)
        return NOT_SUPPORTED;
    set->wanted[device - devices] |= types;
    return SUCCESS;
}

// Events without a registration are not returned; each event is returned once.
static int next(struct set *set, struct event *found)
{
    char line[512], at[64];
    unsigned long number;
    unsigned long long type, data;
    int got = 0;
    FILE *file = state();
    while (!got && file && fgets(line, sizeof line, file)) {
        if (sscanf(line, "event %lu %63s %llu %llu", &number, at, &type, &data) != 4 || number <= set->last)
            continue;
        struct device *device = NULL;
        for (int i = 0; i < DEVICES; i++)
            if ((!strcmp(at, "?") || !strcmp(at, devices[i].address)) && set->wanted[i] & type) {
                device = &devices[i];
                break;
            }
        if (!device)
            continue;
        set->last = number;
        *found = (struct event){!strcmp(at, "?") ? NULL : device, type, data, ~0u, ~0u};
        got = 1;
    }
    if (file)
        fclose(file);
    return got;
}

int nvmlEventSetWait_v2(struct set *set, struct event *found, unsigned milliseconds)
{
    int status = begin("nvmlEventSetWait_v2", NULL);
    if (status)
        return status;
    if (!known_set(set) || !found)
        return INVALID_ARGUMENT;
    struct timespec now, end;
    clock_gettime(CLOCK_MONOTONIC, &end);
    end.tv_sec += milliseconds / 1000;
    end.tv_nsec += milliseconds % 1000 * 1000000l;
    do {
        if (next(set, found))
            return SUCCESS;
        usleep(5000);
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while (now.tv_sec * 1000000000ll + now.tv_nsec < end.tv_sec * 1000000000ll + end.tv_nsec);
    return TIMEOUT;
}

int nvmlEventSetFree(struct set *set)
{
    int status = begin("nvmlEventSetFree", NULL);
    if (status)
        return status;
    if (!known_set(set))
        return INVALID_ARGUMENT;
    set->used = 0;
    return SUCCESS;
}
