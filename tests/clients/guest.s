# A guest to migrate, a boot sector. It fills 32 MB with words of a generator, then counts for ever in 64 of its pages,
# and says so at port 0xe9: "b" when memory is filled, "." for each round.
        .code16
        .globl  _start
_start: cli
        lgdt    %cs:table
        movl    %cr0, %eax
        orb     $1, %al
        movl    %eax, %cr0
        ljmpl   $8, $flat

        .code32
flat:   movw    $16, %ax
        movw    %ax, %ds
        movw    %ax, %es
        movl    $0x100000, %edi
        movl    $(32 << 20) / 4, %ecx
        movl    $0x2545f491, %eax
        cld
# Marsaglia's xorshift with 13, 17, 5.
fill:   movl    %eax, %edx
        shll    $13, %edx
        xorl    %edx, %eax
        movl    %eax, %edx
        shrl    $17, %edx
        xorl    %edx, %eax
        movl    %eax, %edx
        shll    $5, %edx
        xorl    %edx, %eax
        stosl
        loop    fill
        movb    $'b', %al
        outb    %al, $0xe9

round:  movl    $0x4000, %ebx
again:  movl    $0x100000, %edi
        movl    $64, %ecx
count:  incl    (%edi)
        addl    $0x80000, %edi
        loop    count
        decl    %ebx
        jnz     again
        movb    $'.', %al
        outb    %al, $0xe9
        jmp     round

        .align  8
entries: .quad  0, 0x00cf9a000000ffff, 0x00cf92000000ffff
table:  .word   . - entries - 1
        .long   entries
        .org    510
        .word   0xaa55
